"""The identity of a running process, as its folder has it now.

A look every two seconds reads the folder anew. What is trusted is judged by itself and counts at
once; a new leaf takes the place of the old one where it is valid. What is refused is told once and
counted, and what was there stays, until the leaf is not valid any more: then the process ends.

Called by `process_security`. Source: docs/protocol/identity.md "The folder".
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client import Counter, Gauge

from duramen.runtime.identity.certificates import (
    Bundle,
    CertificateRefusedError,
    find_issuer,
    judge_leaf,
    number_of,
)
from duramen.runtime.identity.folder import HeldIdentity, read_bundle, read_folder
from duramen.runtime.identity.folder_watch import FolderWatch
from duramen.runtime.identity.generations import resolve
from duramen.runtime.identity.names import IdentityError, Role

_REFUSED: Final = Counter(
    "duramen_identity_refused", "Generations of the identity's folder that were not to be trusted"
)
_EXPIRES: Final = Gauge(
    "duramen_identity_expires_seconds", "Until the certificate of this process ends", ["issuer"]
)
"""By the serial of its CA. A process without an identity has no series."""


class ExpectedNode(NamedTuple):
    """Whose identity a folder has to hold, as far as that is known before it is read."""

    role: Role
    name: str


class _Look(NamedTuple):
    """What the folder holds: each part, or why it is refused."""

    bundle: Bundle | IdentityError
    held: HeldIdentity | IdentityError


class WatchedIdentity:
    """The identity of this process.

    Attributes:
        held: key and leaf, with what is trusted now as its bundle.

    Args:
        folder: it lies there.
        held: as it was read at the start.
        on_change: called on the loop after leaf, bundle or lists have changed.
        fail: ends the process with one sentence.
    """

    def __init__(
        self,
        folder: Path,
        held: HeldIdentity,
        on_change: Callable[[], None],
        fail: Callable[[str], None],
    ) -> None:
        self.held = held
        self._folder = folder
        self._on_change = on_change
        self._fail = fail
        self._watch = FolderWatch(folder, self.look, "the identity", _REFUSED)

    def start(self) -> None:
        """Look from now on."""
        self._watch.start()

    async def stop(self) -> None:
        """Look no more."""
        await self._watch.stop()

    async def look(self) -> None:
        """Take over what the folder holds now, as far as it is to be trusted."""
        now = _read_clock()
        found = await asyncio.to_thread(_read, self._folder, now)
        before = self.held
        refusals = [*self._take_bundle(found.bundle), *self._take_leaf(found.held, now)]
        self._watch.tell("; ".join(dict.fromkeys(map(str, refusals))) or None)
        if (self.held.leaf, self.held.bundle) != (before.leaf, before.bundle):
            self._watch.note_change()
        leaf, domain = self.held.leaf, self.held.identity.domain
        _EXPIRES.clear()
        issuer = find_issuer(leaf, self.held.bundle) or "none"
        _EXPIRES.labels(issuer).set((leaf.not_valid_after_utc - now).total_seconds())
        try:
            judge_leaf(leaf, self.held.bundle, domain, now)
        except CertificateRefusedError as error:
            self._fail(f"its certificate in {self._folder} {error}: {error.way_out}")
        self._watch.hand_on(self._on_change)

    def statistics(self) -> dict[str, int]:
        """As of `FolderWatch`."""
        return self._watch.statistics()

    def _take_bundle(self, found: Bundle | IdentityError) -> list[IdentityError]:
        if isinstance(found, IdentityError):
            return [found]
        if (behind := _find_older_list(self.held.bundle, found)) is not None:
            return [IdentityError(f"{self._folder}: {behind}")]
        self.held = self.held._replace(bundle=found)
        return []

    def _take_leaf(
        self, found: HeldIdentity | IdentityError, now: dt.datetime
    ) -> list[IdentityError]:
        if isinstance(found, IdentityError):
            return [found]
        if found.leaf == self.held.leaf:
            return []
        mine = self.held.identity
        if found.identity != mine:
            return [IdentityError(f"{self._folder} is of {found.identity} now, not of {mine}")]
        try:
            judge_leaf(found.leaf, self.held.bundle, mine.domain, now)
        except CertificateRefusedError as error:
            return [IdentityError(f"the certificate in {self._folder} {error}: {error.way_out}")]
        self.held = found._replace(bundle=self.held.bundle)
        return []


def notify_all(listeners: Sequence[Callable[[], None]]) -> None:
    """Tell each that there is another certificate, whatever another one makes of it.

    Raises:
        ExceptionGroup: some could not take it, as on a full disk: they are to be told again.
    """
    failures: list[Exception] = []
    for listener in listeners:
        try:
            listener()
        except Exception as error:
            failures.append(error)
    if failures:
        raise ExceptionGroup("not everybody could take another certificate", failures)


def read_expected(folder: Path, expected: ExpectedNode) -> HeldIdentity:
    """The identity that a process starts with.

    Raises:
        IdentityError: the folder holds none, none that is valid, or another one's.
    """
    held = read_folder(folder, _read_clock())
    if (held.identity.role, held.identity.name) != expected:
        raise IdentityError(
            f"{folder} is of {held.identity}, and this is the {expected.role} {expected.name}: "
            "give the folder of that one"
        )
    return held


def _read_clock() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _read(folder: Path, now: dt.datetime) -> _Look:
    bundle: Bundle | IdentityError
    held: HeldIdentity | IdentityError
    try:
        place = resolve(folder)
        bundle = read_bundle(place, now)
        if resolve(folder) != place:
            # The list may have gone before it was read, and looks as though there were none.
            bundle = read_bundle(resolve(folder), now)
    except IdentityError as error:
        bundle = error
    try:
        held = read_folder(folder, now)
    except IdentityError as error:
        held = error
    return _Look(bundle, held)


def _find_older_list(known: Bundle, found: Bundle) -> str | None:
    """Why a bundle forgets what was revoked; None: it does not."""
    offered = {one.issuer: one for one in found.lists}
    for anchor, revoked in zip(known.anchors, known.lists, strict=False):
        if anchor not in found.anchors:
            continue
        newer = offered.get(anchor.subject)
        if newer is None:
            return "the list of what was revoked is gone: put it back"
        if number_of(newer) < number_of(revoked):
            return (
                f"its list has the number {number_of(newer)}, and {number_of(revoked)} was seen: "
                "an older list would forget what was revoked since"
            )
    return None
