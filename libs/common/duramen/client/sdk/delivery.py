"""Brings one encoded batch, or a token, into its log, with the tries that the policy allows.

The rule: once a try was uncertain, only an acknowledgement settles the append; a refusal of its
repetition says nothing about the first, so what is raised then is `Uncertain`. What must not be in
the log twice, such as a batch without a producer, is never sent again after an uncertain try.
Used by `sdk.log`, `sdk.producer` and `client.bulk_append`. Source: docs/protocol/rest.md "Append".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from duramen.client.rest_client import Appended
from duramen.client.retry import Pauses, is_repeatable
from duramen.client.sdk.faults import Uncertain, classify
from duramen.errors import DuramenError
from duramen.runtime.http_client import UnreachableError

T = TypeVar("T")


async def deliver(
    send: Callable[[], Awaitable[T]], pauses: Pauses | None, *, may_be_sent_twice: bool
) -> T:
    """Append one batch, once, or set a token.

    Args:
        send: one try; raises as `RestClient.append`.
        pauses: of the repetitions; None: there is one try.
        may_be_sent_twice: it may be sent again when its fate is open: a batch with a producer, or a
            token in place of any other.

    Raises:
        Uncertain: its fate is open.
        DuramenError: refused, nothing was appended.
        UnreachableError: no connection, nothing was appended.
    """
    was_uncertain = False
    while True:
        try:
            return await send()
        except (DuramenError, UnreachableError) as error:
            was_uncertain |= isinstance(error, DuramenError) and error.uncertain
            may_repeat = is_repeatable(error, is_read=False, has_producer=may_be_sent_twice)
            pause_s = pauses.next_s(error) if pauses is not None and may_repeat else None
            if pause_s is None:
                if was_uncertain and not isinstance(error, Uncertain):
                    raise _still_open(error) from error
                raise
        await asyncio.sleep(pause_s)


def check_count(appended: Appended, record_count: int) -> Appended:
    """The answer itself, if it is about as many records as were sent.

    Raises:
        Uncertain: it is about something else.
    """
    start, end = appended.start, appended.end
    if start is not None and end is not None and end - start != record_count:
        detail = f"{record_count} records were sent, positions {appended} came back"
        raise Uncertain("append_uncertain", detail)
    return appended


def _still_open(error: DuramenError | UnreachableError) -> DuramenError:
    if isinstance(error, DuramenError) and error.uncertain:
        return classify(error)
    return Uncertain(
        "append_uncertain", f"an earlier try may have been done; the last one: {error}"
    )
