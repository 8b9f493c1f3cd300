"""The caller of a call that was let in, as its route finds it; and how the route learns of its end.

A call that lasts is judged anew while it does (`lasting_calls`). What is no longer allowed is told
to the call here, once, and whoever waits in its name is woken.

Called by the routes of both proxies and by `forwarding`.
Source: docs/protocol/rights.md "How a call is judged".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from duramen.core.rights.judgement import Rights
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.admission.call_rows import FoundRow
from duramen.runtime.admission.refusals import refuse_verb
from duramen.runtime.credentials.principals import Bearer

CALL_KEY: Final = "duramen.call"
"""In the scope of a call that was let in; not there with `--security none`."""

REQUEST_KEY: Final = "duramen-request"
"""In the scope of a call that logs tell of: its id. The name of the answer's header as well."""


class Asked(Protocol):
    """A request, as far as it matters here."""

    @property
    def scope(self) -> Mapping[str, Any]:
        """The ASGI scope."""


class ShownCredentials(NamedTuple):
    """The values of the two headers by which a caller says who it is."""

    authorizations: tuple[str, ...]
    identities: tuple[str, ...]

    def __repr__(self) -> str:
        counts = len(self.authorizations), len(self.identities)
        return "ShownCredentials({} and {})".format(*counts)


class AdmittedCall:
    """One call of somebody who is known.

    Attributes:
        bearer: who calls.
        found: which call it is, of which names; None: no call of the table.
        refusal: why it may not go on; None while it may.
        is_leaving: it is to end as at a stop, and to go on elsewhere: its server was replaced.
        judged_s: when it was judged last, in seconds since 1970.
    """

    __slots__ = (
        "_find_rights", "_on_end", "bearer", "found", "is_leaving", "judged_s", "refusal", "shown",
    )  # fmt: skip

    def __init__(
        self,
        bearer: Bearer,
        shown: ShownCredentials,
        found: FoundRow | None,
        now_s: float,
        find_rights: Callable[[Bearer], Rights],
    ) -> None:
        self.bearer = bearer
        self.shown = shown
        self.found = found
        self.judged_s = now_s
        self.refusal: DuramenError | None = None
        self.is_leaving = False
        self._on_end: Callable[[], None] | None = None
        self._find_rights = find_rights

    @property
    def is_ended(self) -> bool:
        """Whether it was said that it may go on no more, so that it need not be judged again."""
        return self.refusal is not None

    def find_rights(self) -> Rights:
        """What its caller may do now; what is not known is told when it is asked for."""
        return self._find_rights(self.bearer)

    def is_allowed(self) -> bool:
        """Whether its caller may do now what it began as.

        Raises:
            DuramenError: `metadata_unavailable`.
        """
        if self.found is None:
            return True
        row, namespace, log = self.found
        return self._find_rights(self.bearer).judge(row.verb, namespace, log)

    def demand(self, verb: Verb, namespace: str | None, log: str | None = None) -> None:
        """See that its caller may do one more thing; without a namespace, to the cluster.

        Raises:
            DuramenError: `forbidden`, `metadata_unavailable`.
        """
        if not self.find_rights().judge(verb, namespace, log):
            raise refuse_verb(verb, namespace, log)

    def check(self) -> None:
        """See that it may go on.

        Raises:
            DuramenError: it may not.
        """
        if self.refusal is not None:
            raise self.refusal

    def end(self, refusal: DuramenError) -> None:
        """It may go on no more."""
        if self.refusal is None:
            self.refusal = refusal
            self._wake()

    def leave(self) -> None:
        """It is to go on elsewhere."""
        self.is_leaving = True
        self._wake()

    def watch(self, on_end: Callable[[], None] | None) -> None:
        """Whoever waits for long is called when it is refused or leaving, at once if it is."""
        self._on_end = on_end
        if self.refusal is not None or self.is_leaving:
            self._wake()

    def _wake(self) -> None:
        if self._on_end is not None:
            self._on_end()


def call_of(request: Asked) -> AdmittedCall | None:
    """The call as it was let in; None: nobody is asked who it is (`--security none`)."""
    found: AdmittedCall | None = request.scope.get(CALL_KEY)
    return found


def caller_of(request: Asked) -> Bearer | None:
    """Who calls; None: nobody is asked who it is (`--security none`)."""
    call = call_of(request)
    return None if call is None else call.bearer
