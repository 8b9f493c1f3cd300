"""Brings one encoded batch into its log, with the tries that the policy allows.

The rule: once a try was uncertain, only an acknowledgement settles the append; a refusal of its
repetition says nothing about the first, so what is raised then is `Uncertain`. Without a producer
an uncertain try is never followed by another.
Used by `sdk.log`, `sdk.producer` and `client.bulk_append`. Source: docs/protocol/rest.md "Append".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from duramen.client.rest_client import Appended
from duramen.client.retry import Pauses, is_repeatable
from duramen.client.sdk.faults import Uncertain, classify
from duramen.errors import DuramenError
from duramen.runtime.http_client import UnreachableError

Try = Callable[[], Awaitable[Appended]]


async def deliver(send: Try, pauses: Pauses | None, *, has_producer: bool) -> Appended:
    """Append one batch, once.

    Args:
        send: one try; raises as `RestClient.append`.
        pauses: of the repetitions; None: there is one try.
        has_producer: the batch may be sent again when its fate is open.

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
            may_repeat = is_repeatable(error, is_read=False, has_producer=has_producer)
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
    return Uncertain("append_uncertain", f"an earlier try may be stored; the last one: {error}")
