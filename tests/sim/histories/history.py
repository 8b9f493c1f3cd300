"""A run's events spelled shortly, so that a history is a few lines long.

`History` calls the checkers as the simulator's world would; one µs passes with each event. Appends
go to one log of Qw 3, Qa 2 on four bookies in three racks. Used by the other modules of this
folder and by `test_checkers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from duramen.core.placement import Candidate, PlacementRule
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.ids import (
    BookieId,
    Dlsn,
    EntryId,
    Epoch,
    Incarnation,
    LogId,
    Member,
    SequencerId,
    ledger_of,
)
from tests.sim.checkers import Checkers

LOG, OTHER = LogId(7), LogId(8)
PIPELINED = 9
A, B, C, D, NEW_A = (
    Member(BookieId(name), Incarnation(life))
    for name, life in (("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), ("a", "2"))
)
LOCATIONS = {
    member: Candidate(member, "east", rack)
    for member, rack in ((A, "r1"), (B, "r2"), (C, "r3"), (D, "r1"), (NEW_A, "r1"))
}
Record = tuple[Dlsn, int, bytes]


def make_segment(*ensembles: tuple[Member, ...], epoch: int = 1, starts: str = "0") -> Segment:
    """An open segment of Qw 3, Qa 2; fragments start at the entries that `starts` lists."""
    fragments = tuple(
        Fragment(EntryId(int(first)), ensemble)
        for first, ensemble in zip(starts.split(), ensembles or ((A, B, C),), strict=True)
    )
    quorum = Quorum(len(fragments[0].ensemble), 3, 2)
    return Segment(LOG, Epoch(epoch), quorum, fragments)


def place(epoch: int, entry: int, slot: int = 0) -> Dlsn:
    return Dlsn(Epoch(epoch), EntryId(entry), slot)


def bodies_of(text: str) -> tuple[bytes, ...]:
    return tuple(part.encode() for part in text.split())


def records(*rows: tuple[int, int, int, int, str]) -> list[Record]:
    """The final read: (epoch, entry, slot, sequence number, body) each."""
    return [(place(e, n, s), seq_num, body.encode()) for e, n, s, seq_num, body in rows]


class History:
    """Events of one run, spelled shortly; two epochs are open at the start."""

    def __init__(self, rule: PlacementRule | None = None) -> None:
        rules = {LOG: rule or PlacementRule(min_racks=2)}
        self.checkers = Checkers(LOCATIONS, rules, pipelined=(PIPELINED,))
        self.now_us = 0
        self.clients: dict[int, int] = {}
        self.open(1)
        self.open(2)

    def tick(self) -> int:
        self.now_us += 1
        return self.now_us

    def open(
        self, epoch: int, who: str = "s0", log_id: LogId = LOG, *, ack_mode: str = "ordered"
    ) -> None:
        self.checkers.on_segment_opened(log_id, Epoch(epoch), SequencerId(who), ack_mode)

    def close(
        self, epoch: int, last: int, count: int, start: int, who: str = "s0", *, own: bool = False
    ) -> None:
        who_id, end = SequencerId(who), EntryId(last)
        self.checkers.on_segment_closed(
            LOG, Epoch(epoch), end, Totals(count), start, who_id, is_committed=not own
        )

    def invoke(self, append_id: int, text: str, client: int = 0, log_id: LogId = LOG) -> None:
        self.clients[append_id] = client
        self.checkers.on_invoke(self.tick(), client, log_id, append_id, bodies_of(text))

    def send_in_order(self, *append_ids: int) -> None:
        """These were sent in one session."""
        for append_id in append_ids:
            self.checkers.on_sent_in_order(self.clients[append_id], LOG, append_id, session=1)

    def ok(self, append_id: int, dlsn: Dlsn, seq_num: int | None) -> None:
        client = self.clients[append_id]
        self.checkers.on_acknowledge(self.tick(), client, LOG, append_id, dlsn, seq_num)

    def fail(self, append_id: int) -> None:
        self.checkers.on_fail(self.tick(), self.clients[append_id], LOG, append_id)

    def uncertain(self, append_id: int, *, is_under_way: bool = True) -> None:
        client = self.clients[append_id]
        self.checkers.on_uncertain(self.tick(), client, LOG, append_id, is_under_way=is_under_way)

    def append(
        self, append_id: int, text: str, dlsn: Dlsn, seq_num: int | None, client: int = 0
    ) -> None:
        self.invoke(append_id, text, client)
        self.ok(append_id, dlsn, seq_num)

    def doubt(self, append_id: int, text: str, client: int = 0) -> None:
        self.invoke(append_id, text, client)
        self.uncertain(append_id)

    def read(self, reader: int, dlsn: Dlsn, seq_num: int, body: str) -> None:
        self.checkers.on_read(self.tick(), reader, LOG, dlsn, seq_num, body.encode())

    def tail(self, dlsn: Dlsn, seq_num: int) -> None:
        """Somebody asks for the tail now and is told that it is this, for sure."""
        self.checkers.on_tail(self.tick(), self.checkers.on_tail_asked(LOG), dlsn, seq_num)

    def read_to_tail(self, head: Dlsn, found: Sequence[Dlsn]) -> None:
        """Somebody asks for the tail now and reads up to it."""
        self.checkers.on_read_to_tail(self.checkers.on_tail_asked(LOG), head, found)

    def lac(self, reader: int, epoch: int, lac: int) -> None:
        self.checkers.on_reader_lac(reader, ledger_of(LOG, Epoch(epoch)), EntryId(lac))

    def store(self, members: Sequence[Member], entry: int, crc: int = 5, epoch: int = 1) -> None:
        for member in members:
            self.checkers.on_durable(member, ledger_of(LOG, Epoch(epoch)), EntryId(entry), crc)

    def confirm(self, entry: int, segment: Segment | None = None, crc: int = 5) -> None:
        self.checkers.on_entry_acknowledged(
            self.tick(), segment or make_segment(), EntryId(entry), crc
        )

    def cover(self, epoch: int, responders: Sequence[Member] = ()) -> None:
        self.checkers.on_sealed_by_cover(LOG, Epoch(epoch), responders)

    def finish(self, *rows: tuple[int, int, int, int, str]) -> None:
        self.checkers.finish({LOG: records(*rows)})


Play = Callable[[History], None]
