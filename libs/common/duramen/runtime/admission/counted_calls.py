"""A call of somebody who is known, while a cluster turns security on: nothing is refused to it.

What it may not do is counted, and done. A route finds rights to everything, so a list is not cut;
what would end the call while it lasts is counted once.

Made by `public_door`. Source: docs/protocol/turning-on.md "What is judged, and only counted".
"""

from __future__ import annotations

from typing import Final

from duramen.core.rights.grants import GrantScope
from duramen.core.rights.judgement import Rights
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.admission.call_rows import FoundRow
from duramen.runtime.admission.callers import AdmittedCall
from duramen.runtime.admission.refusals import refuse_verb
from duramen.runtime.turning.tally import RefusalTally, WouldBeRefused

_EVERYTHING: Final = Rights([(GrantScope(), sum(verb.bit for verb in Verb))])


class CountedCall(AdmittedCall):
    """As its base says; it never raises."""

    __slots__ = ("_tally", "_was_ended")

    def count_by(self, tally: RefusalTally) -> None:
        """To be called once, at first."""
        self._tally = tally
        self._was_ended = False

    @property
    def is_ended(self) -> bool:
        """Also if it goes on: it is counted once."""
        return self._was_ended

    def find_rights(self) -> Rights:
        """To everything; what its caller really may is for `demand`."""
        return _EVERYTHING

    def demand(self, verb: Verb, namespace: str | None, log: str | None = None) -> None:
        """Count it, if its caller may not."""
        try:
            if self._find_rights(self.bearer).judge(verb, namespace, log):
                return
            kind, why = "forbidden", refuse_verb(verb, namespace, log).detail
        except DuramenError as error:
            kind, why = "not_known_now", error.detail
        self._note(verb, kind, why, f"{namespace}/{log}" if log else namespace or "")

    def end(self, refusal: DuramenError) -> None:
        """Count that it would not go on, once."""
        if self.found is not None and not self._was_ended:
            self._was_ended = True
            self._note(
                self.found.row.verb, refusal.code, refusal.detail, describe_target(self.found)
            )

    def _note(self, verb: Verb, kind: str, why: str, target: str) -> None:
        who = str(self.bearer.principal)
        self._tally.note(WouldBeRefused("public", who, verb.value, kind, why, target))


def describe_target(found: FoundRow | None) -> str:
    """The log, the namespace, or nothing."""
    if found is None or found.namespace is None:
        return ""
    return found.namespace if found.log is None else f"{found.namespace}/{found.log}"
