"""Who calls: headers of one's own for each receiver, and a table of those that were verified.

A caller sends the same header until half of its life is over, so HTTP/2 indexes it and the receiver
finds it by its text. The table is bounded, also for each leaf: who makes many headers pushes out
its own. What may be trusted changes with the bundle, so a new one empties the table. A proxy that
forwards calls has a header for each client as well; only a table that is told so knows those.

Called by whoever calls or serves a data port, and by public ports.
Source: docs/protocol/identity.md "The caller's header".
"""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from typing import Final, NamedTuple

from cryptography import x509

from duramen.runtime.identity.certificates import Bundle
from duramen.runtime.identity.folder import HeldIdentity
from duramen.runtime.identity.header import (
    LIFE_S_MAX,
    SKEW_S_MAX,
    Caller,
    CallerRefusedError,
    NamedClient,
    Parts,
    judge_times,
    make_header,
    read_caller_leaf,
    take_apart,
    verify_signature,
)
from duramen.runtime.identity.names import Identity, Role

ROW_COUNT_MAX: Final = 4_096
ROW_COUNT_PER_LEAF: Final = 8
FIRST_COUNT_PER_LEAF: Final = 32
"""Verifications that a leaf may ask for at once; another each second. A receiver that restarts is
asked for one by each caller, and a caller makes a new header every 150 s."""

RECEIVER_COUNT_MAX: Final = 4_096
CLIENT_HEADER_COUNT_MAX: Final = 4_096
"""Headers in clients' names that one receiver keeps of one proxy."""

MADE_FOR_CLIENT_COUNT_MAX: Final = 4 * CLIENT_HEADER_COUNT_MAX
"""And that a proxy keeps of its own: clients whose logs are served by several receivers."""


class LeafBounds(NamedTuple):
    """What the headers of one leaf may take of a table."""

    row_count: int = ROW_COUNT_PER_LEAF
    first_count: int = FIRST_COUNT_PER_LEAF
    gained_per_s: float = 1.0


class CallerBounds(NamedTuple):
    """The rows of a table, and which roles speak for clients there, with a header for each."""

    row_count: int
    speakers: frozenset[Role] = frozenset()
    of_speaker: LeafBounds = LeafBounds()


_SPEAKERS: Final = {
    Role.WRITEPROXY: frozenset((Role.READPROXY,)),
    Role.READPROXY: frozenset((Role.WRITEPROXY,)),
}
"""Whose calls arrive at whose public port: a proxy never forwards to one of its own kind."""

PUBLIC_ROW_COUNT_MAX: Final = 16_384
OF_SPEAKER: Final = LeafBounds(CLIENT_HEADER_COUNT_MAX, CLIENT_HEADER_COUNT_MAX, 1_000.0)
"""All that a proxy has may come at once, when one of the two restarts or trust changes: 0.35 s of a
core at 86 µs each. Later ones take 9 % of a core at most."""

_OF_OTHERS: Final = LeafBounds()


def bound_public_port(role: Role) -> CallerBounds:
    """The bounds of the table at the public port of a process of this role."""
    speakers = _SPEAKERS.get(role, frozenset[Role]())
    return CallerBounds(PUBLIC_ROW_COUNT_MAX, speakers, OF_SPEAKER)


class TooManyHeadersError(CallerRefusedError):
    """A leaf asks for more verifications than a receiver spends on one: 429."""


class OwnHeaders:
    """The headers of one process: one for each receiver, and for each client that it speaks for."""

    def __init__(self, held: HeldIdentity) -> None:
        self._held = held
        self._made: OrderedDict[Identity, tuple[str, float]] = OrderedDict()
        self._made_for: OrderedDict[tuple[Identity, NamedClient], tuple[str, float]] = OrderedDict()
        self._shifts_s: dict[Identity, float] = {}

    def renew(self, held: HeldIdentity) -> None:
        """Another certificate is ours from now on."""
        self._held = held
        self._made.clear()
        self._made_for.clear()

    def give(self, receiver: Identity, now: dt.datetime) -> str:
        """The header for a receiver: the same one until half of its life is over."""
        made = self._made.get(receiver)
        if made is not None and now.timestamp() < made[1]:
            self._made.move_to_end(receiver)
            return made[0]
        header = self._make(receiver, now)
        self._made[receiver] = header, now.timestamp() + LIFE_S_MAX / 2
        if len(self._made) > RECEIVER_COUNT_MAX:
            gone, _ = self._made.popitem(last=False)
            self._shifts_s.pop(gone, None)
        return header

    def give_for(self, receiver: Identity, client: NamedClient, now: dt.datetime) -> str:
        """The header for a receiver in a client's name."""
        key = receiver, client
        made = self._made_for.get(key)
        if made is not None and now.timestamp() < made[1]:
            self._made_for.move_to_end(key)
            return made[0]
        header = self._make(receiver, now, client)
        self._made_for[key] = header, now.timestamp() + LIFE_S_MAX / 2
        if len(self._made_for) > MADE_FOR_CLIENT_COUNT_MAX:
            self._made_for.popitem(last=False)
        return header

    def shift(self, receiver: Identity, theirs_s: float, now: dt.datetime) -> None:
        """A receiver refused a header for its time, and told its own: go by that one's clock."""
        self._made.pop(receiver, None)
        for key in [one for one in self._made_for if one[0] == receiver]:
            del self._made_for[key]
        self._shifts_s[receiver] = theirs_s - now.timestamp()

    def reconsider(
        self,
        receiver: Identity,
        refused: str,
        their_s: float | None,
        now: dt.datetime,
        client: NamedClient | None = None,
    ) -> None:
        """A receiver does not know a header: make another one, by its clock if it told it.

        Args:
            refused: the header; many calls may carry it, and one new one is enough for all.
            their_s: seconds since 1970. A header is made for no time beyond the certificate's.
        """
        if not self.forget(receiver, refused, client) or their_s is None:
            return
        leaf = self._held.leaf
        begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
        if begins.timestamp() <= their_s <= ends.timestamp():
            self.shift(receiver, their_s, now)

    def forget(self, receiver: Identity, refused: str, client: NamedClient | None = None) -> bool:
        """A receiver refused a header: make another one, unless it was made already."""
        if client is not None:
            spoken = self._made_for.get((receiver, client))
            if spoken is None or spoken[0] != refused:
                return False
            del self._made_for[receiver, client]
            return True
        made = self._made.get(receiver)
        if made is None or made[0] != refused:
            return False
        del self._made[receiver]
        return True

    def _make(self, receiver: Identity, now: dt.datetime, client: NamedClient | None = None) -> str:
        shifted = now + dt.timedelta(seconds=self._shifts_s.get(receiver, 0.0))
        return make_header(self._held.key, self._held.leaf, receiver, shifted, client)


class _Leaf:
    """A leaf that is valid, and what its holder may still ask for."""

    __slots__ = ("bounds", "certificate", "headers", "identity", "left", "seen_s")

    def __init__(
        self, certificate: x509.Certificate, identity: Identity, now_s: float, bounds: LeafBounds
    ) -> None:
        self.bounds = bounds
        self.certificate = certificate
        self.identity = identity
        self.headers: OrderedDict[str, None] = OrderedDict()
        self.left = float(bounds.first_count)
        self.seen_s = now_s

    def take_one(self, now_s: float) -> bool:
        """Whether another verification is its due."""
        gained = max(now_s - self.seen_s, 0.0) * self.bounds.gained_per_s
        self.left = min(self.left + gained, float(self.bounds.first_count))
        self.seen_s = now_s
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


class Callers:
    """Those who named themselves to one receiver, by the text of their headers.

    Args:
        bounds: None: a data port's, where nobody speaks for a client.
    """

    def __init__(
        self, receiver: Identity, bundle: Bundle, bounds: CallerBounds | None = None
    ) -> None:
        self._receiver = receiver
        self._bounds = bounds or CallerBounds(ROW_COUNT_MAX)
        self._bundle = bundle
        self._rows: OrderedDict[str, tuple[Caller, bytes]] = OrderedDict()
        self._leaves: OrderedDict[bytes, _Leaf] = OrderedDict()
        self._verified_count = 0
        self._refused_count = 0

    def trust(self, bundle: Bundle) -> None:
        """What is trusted has changed: everybody is verified anew."""
        self._bundle = bundle
        self._rows.clear()
        self._leaves.clear()

    def find(self, header: str, now: dt.datetime) -> Caller:
        """Who calls.

        Raises:
            TooManyHeadersError: its leaf asks for too many verifications.
            CallerRefusedError: the header names nobody, or nobody who means this receiver now.
        """
        row = self._rows.get(header)
        if row is not None:
            if now.timestamp() < row[0].until_s:
                self._rows.move_to_end(header)
                self._leaves[row[1]].headers.move_to_end(header)
                return row[0]
            self._drop(header)
        try:
            caller = self._verify(header, now)
        except CallerRefusedError:
            self._refused_count += 1
            raise
        self._verified_count += 1
        return caller

    def find_again(self, header: str, now: dt.datetime) -> Caller:
        """Who made a call that lasts: by its certificate, since the header has done its work.

        Raises:
            CallerRefusedError: the certificate is not valid any more.
        """
        parts = take_apart(header)
        return self._name(parts, self._find_leaf(parts.leaf_der, now))

    def statistics(self) -> dict[str, int]:
        """Sizes and counters."""
        return {
            "callers": len(self._leaves),
            "headers": len(self._rows),
            "headers_max": self._bounds.row_count,
            "verified": self._verified_count,
            "refused": self._refused_count,
        }

    def _verify(self, header: str, now: dt.datetime) -> Caller:
        parts = take_apart(header)
        if parts.audience != str(self._receiver):
            raise CallerRefusedError(f"it is meant for {parts.audience[:200]!r}")
        now_s = now.timestamp()
        judge_times(parts, now_s)
        leaf = self._find_leaf(parts.leaf_der, now)
        # What fails costs its sender's victim nothing: who knows a leaf is not its holder.
        verify_signature(parts, leaf.certificate)
        if not leaf.take_one(now_s):
            raise TooManyHeadersError(f"{leaf.identity} makes too many headers")
        caller = self._name(parts, leaf)
        self._leaves.setdefault(parts.leaf_der, leaf)
        self._keep(header, parts.leaf_der, caller)
        return caller

    def _name(self, parts: Parts, leaf: _Leaf) -> Caller:
        """Who a header names, and in whose name.

        Raises:
            CallerRefusedError: in a client's, which is not this caller's to say, or not here.
        """
        identity, client = leaf.identity, parts.client
        if client is not None and identity.role not in self._bounds.speakers:
            raise CallerRefusedError(f"{identity} speaks for a client")
        ends_s = leaf.certificate.not_valid_after_utc.timestamp()
        return Caller(identity, min(parts.expires_s + SKEW_S_MAX, ends_s), ends_s, client)

    def _find_leaf(self, der: bytes, now: dt.datetime) -> _Leaf:
        known = self._leaves.get(der)
        if known is not None and now < known.certificate.not_valid_after_utc:
            return known
        leaf = read_caller_leaf(der, self._receiver.domain, self._bundle, now)
        is_speaker = leaf[1].role in self._bounds.speakers
        bounds = self._bounds.of_speaker if is_speaker else _OF_OTHERS
        return _Leaf(*leaf, now.timestamp(), bounds)

    def _keep(self, header: str, der: bytes, caller: Caller) -> None:
        self._rows[header] = caller, der
        leaf = self._leaves[der]
        leaf.headers[header] = None
        if len(leaf.headers) > leaf.bounds.row_count:
            self._drop(next(iter(leaf.headers)))
        if len(self._rows) > self._bounds.row_count:
            self._drop(next(iter(self._rows)))

    def _drop(self, header: str) -> None:
        _, der = self._rows.pop(header)
        leaf = self._leaves[der]
        del leaf.headers[header]
        if not leaf.headers:
            del self._leaves[der]
