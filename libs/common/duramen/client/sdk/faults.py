"""What the SDK raises: one family, `DuramenError`, with the codes of the one table.

`Uncertain` and `Unreachable` are subclasses by what a caller must know first: that something may
have happened, or that nothing has. The exceptions of the transport are translated here, once.
Called by everything in `client.sdk`. Source: docs/protocol/errors.md.
"""

from __future__ import annotations

from typing import NoReturn

from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError, UnreachableError


class Uncertain(DuramenError):
    """It may have happened, or happen later: `append_uncertain` (`internal`) for an append.

    The records are in the log once, or not at all. The SDK has sent them again while the policy
    allowed it. A retry by hand may store them twice: read the log before it.
    """


class Unreachable(DuramenError):
    """No proxy was reached (code `log_unavailable`); a retry is safe.

    Nothing of an append has happened. A change that may be done twice, such as `ensure`, may have
    taken effect by an earlier try that got no answer.
    """


def classify(error: DuramenError) -> DuramenError:
    """The same error, as `Uncertain` if it is."""
    if not error.uncertain or isinstance(error, Uncertain):
        return error
    return Uncertain(
        error.code,
        error.detail,
        field=error.field,
        retry_after_ms=error.retry_after_ms,
        uncertain=True,
        facts=error.facts,
    )


def translate_fault(error: Exception, *, is_change: bool) -> DuramenError:
    """The SDK's error for one of the transport or of a server.

    Args:
        is_change: the call changes something and must not be done twice, so that no answer leaves
            its fate open; otherwise no answer means no more than that there is none.
    """
    if isinstance(error, DuramenError):
        return classify(error)
    assert isinstance(error, PeerError), error
    if isinstance(error, UnreachableError):
        return Unreachable("log_unavailable", str(error))
    if is_change:
        return Uncertain("internal", f"it may have been done: {error}", uncertain=True)
    return DuramenError("log_unavailable", str(error))


def raise_again(error: DuramenError) -> NoReturn:
    """Raise an error that several callers get, each with a traceback of its own.

    Raises:
        DuramenError: `error`.
    """
    raise error.with_traceback(None)
