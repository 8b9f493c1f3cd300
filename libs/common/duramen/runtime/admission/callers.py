"""The caller of a call that was let in, as its route finds it; and how the route learns of its end.

A call that lasts is judged anew while it does (`lasting_calls`). What is no longer allowed is told
to the call here, once, and whoever waits in its name is woken.

Called by the routes of both proxies and by `forwarding`.
Source: docs/protocol/rights.md "How a call is judged".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.admission.call_rows import FoundRow
from duramen.runtime.admission.caller_rights import CallerRights, refuse
from duramen.runtime.credentials.principals import Bearer

CALL_KEY: Final = "duramen.call"
"""In the scope of a call that was let in; not there with `--security none`."""


class Asked(Protocol):
    """A request, as far as it matters here."""

    @property
    def scope(self) -> Mapping[str, Any]:
        """The ASGI scope."""


class ShownCredentials(NamedTuple):
    """The values of the two headers by which a caller says who it is."""

    authorizations: tuple[str, ...]
    identities: tuple[str, ...]


class AdmittedCall:
    """One call of somebody who is known.

    Attributes:
        bearer: who calls.
        found: which call it is, of which names; None: no call of the table.
        refusal: why it may not go on; None while it may.
        on_end: called when there is a refusal; whoever waits for long sets it.
        judged_s: when it was judged last, in seconds since 1970.
    """

    __slots__ = ("_find_rights", "bearer", "found", "judged_s", "on_end", "refusal", "shown")

    def __init__(
        self,
        bearer: Bearer,
        shown: ShownCredentials,
        found: FoundRow | None,
        now_s: float,
        find_rights: Callable[[Bearer], CallerRights],
    ) -> None:
        self.bearer = bearer
        self.shown = shown
        self.found = found
        self.judged_s = now_s
        self.refusal: DuramenError | None = None
        self.on_end: Callable[[], None] | None = None
        self._find_rights = find_rights

    def find_rights(self) -> CallerRights:
        """What its caller may do now.

        Raises:
            DuramenError: `metadata_unavailable`.
        """
        return self._find_rights(self.bearer)

    def demand(self, verb: Verb, namespace: str, log: str | None = None) -> None:
        """See that its caller may do one more thing.

        Raises:
            DuramenError: `forbidden`, `metadata_unavailable`.
        """
        if not self.find_rights().judge(verb, namespace, log):
            raise refuse(verb, namespace, log)

    def check(self) -> None:
        """See that it may go on.

        Raises:
            DuramenError: it may not.
        """
        if self.refusal is not None:
            raise self.refusal

    def listen(self, on_end: Callable[[], None]) -> None:
        """Call this when there is a refusal; at once where there is one already."""
        self.on_end = on_end
        if self.refusal is not None:
            on_end()

    def end(self, refusal: DuramenError) -> None:
        """It may go on no more."""
        if self.refusal is None:
            self.refusal = refusal
            if self.on_end is not None:
                self.on_end()


def call_of(request: Asked) -> AdmittedCall | None:
    """The call as it was let in; None: nobody is asked who it is (`--security none`)."""
    found: AdmittedCall | None = request.scope.get(CALL_KEY)
    return found


def caller_of(request: Asked) -> Bearer | None:
    """Who calls; None: nobody is asked who it is (`--security none`)."""
    call = call_of(request)
    return None if call is None else call.bearer
