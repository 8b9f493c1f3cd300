"""What clients and readers of one log experienced, judged by D1, D3, U1, L1, O1, O2 and O3.

Part of `checkers`, which gives it every append, answer and record read, and at the end one complete
read. It is no model of the log: it knows positions only from what others claim, and lets no two
claims differ. O(1) for each record, whatever the length of the history.

A *content* is the tuple of bodies of one append. Within a log a body belongs to one content, so
that bytes name the append; an append that is tried anew is another append of the same content.
Source: docs/testing.md "Invariants", docs/protocol/wire.md "Identities", docs/protocol/write.md,
docs/protocol/recovery.md, docs/protocol/reading.md "What may be shown".
"""

from __future__ import annotations

import enum
import itertools
import random
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from duramen.ids import Dlsn, LogId
from duramen.units import MS
from tests.sim.segment_record import Record, Tally, Violation, format_text


class Outcome(enum.Enum):
    """What a client knows about its append."""

    OPEN = "open"
    OK = "ok"
    FAIL = "fail"
    UNCERTAIN = "uncertain"


@dataclass(slots=True, eq=False)
class _Content:
    """The bodies of an append, and every append that was made of them."""

    bodies: tuple[bytes, ...]
    appends: list[_Append] = field(default_factory=list)
    failed_count: int = 0
    seen_count: int = 0
    """Places where readers saw its first body."""

    unclaimed: list[tuple[int, int]] = field(default_factory=list)
    """Sequence numbers and places in the final read that no acknowledgement named."""

    @property
    def copies_max(self) -> int:
        return len(self.appends) - self.failed_count


@dataclass(slots=True, eq=False)
class _Append:
    """One append; `floor` is where everything acknowledged before its invocation ended.

    Floors are sequence numbers, and for what was acknowledged early, whose number is learnt when it
    is read, places in the log.
    """

    client: int
    append_id: int
    content: _Content
    invoked_us: int
    invoked_step: int
    floor: int
    own_floor: int
    key_floor: int
    own_key_floor: int
    outcome: Outcome = Outcome.OPEN
    answered_us: int = 0
    answered_step: int = 0
    is_under_way: bool = True
    key: int = -1
    seq_num: int = -1

    def __repr__(self) -> str:
        place = f" at {_format(self.key)} seq {self.seq_num}" if self.key >= 0 else ""
        return (
            f"append {self.append_id} of client {self.client} ({len(self.content.bodies)} records, "
            f"invoked {self.invoked_us} µs, {self.outcome.value} {self.answered_us} µs{place})"
        )


class TailQuestion(NamedTuple):
    """When a tail was asked for, what was acknowledged ended here: a place, and a number."""

    log_id: LogId
    end_key: int
    end: int
    record_count: int
    """So many records were acknowledged."""


class LogRecord:
    """The history of one log.

    Args:
        tally: of checks made, shared with the other logs.
        pipelined: clients that may have more than one append under way.
    """

    def __init__(self, log_id: LogId, tally: Tally, pipelined: Collection[int]) -> None:
        self.log_id = log_id
        self._tally = tally
        self._pipelined = pipelined
        self._step = 0
        self._appends: dict[tuple[int, int], _Append] = {}
        self._contents: list[_Content] = []
        self._homes: dict[bytes, tuple[_Content, int]] = {}
        self._acknowledged: dict[int, _Append] = {}
        self._seen: dict[int, tuple[int, bytes]] = {}
        self._seen_seq_nums: dict[int, int] = {}
        self._end = 0
        self._own_ends: dict[int, int] = {}
        self._end_key = 0
        self._own_end_keys: dict[int, int] = {}
        self._open_counts: dict[int, int] = {}
        self._sessions: dict[tuple[int, int], list[_Append]] = {}
        self._invoked_count = 0
        """Records that anybody ever wanted to append."""
        self._tails: dict[int, int] = {}
        """Tails that were called sure: place, and number."""

    # --- clients ---------------------------------------------------------------------------------

    def on_invoke(
        self, now_us: int, client: int, append_id: int, bodies: tuple[bytes, ...]
    ) -> None:
        """A client begins an append."""
        assert bodies and (client, append_id) not in self._appends, (client, append_id)
        open_count = self._open_counts.get(client, 0)
        assert open_count == 0 or client in self._pipelined, f"client {client} did not wait"
        self._open_counts[client] = open_count + 1
        self._step += 1
        content = self._content_of(bodies)
        own_end, own_end_key = self._own_ends.get(client, 0), self._own_end_keys.get(client, 0)
        floors = self._end, own_end, self._end_key, own_end_key
        append = _Append(client, append_id, content, now_us, self._step, *floors)
        content.appends.append(append)
        self._appends[client, append_id] = append
        self._invoked_count += len(bodies)

    def on_sent_in_order(self, client: int, append_id: int, session: int) -> None:
        """A client's append is the next one of a session."""
        appends = self._sessions.setdefault((client, session), [])
        appends.append(self._appends[client, append_id])

    def on_acknowledge(
        self, now_us: int, client: int, append_id: int, dlsn: Dlsn, seq_num: int | None
    ) -> None:
        """An append has a position: its records lie side by side from there on."""
        append = self._answer(now_us, client, append_id, Outcome.OK)
        bodies = append.content.bodies
        append.key = key = key_of(dlsn)
        append.seq_num = -1 if seq_num is None else seq_num
        for index, body in enumerate(bodies):
            other = self._acknowledged.get(key + index)
            if other is not None:
                raise self._violation("D1", append, "is where also lies", other)
            seen = self._seen.get(key + index)
            if seen is not None:
                is_same = seen == (_number(append, index, seen[0]), body)
                self._check("D1", is_same, append, "is where a reader saw", seen)
            self._acknowledged[key + index] = append
        self._check_order(append, append.seq_num, key)
        end_key = key + len(bodies)
        self._end_key = max(self._end_key, end_key)
        self._own_end_keys[client] = max(self._own_end_keys.get(client, 0), end_key)
        if append.seq_num < 0:
            return
        end = append.seq_num + len(bodies)
        self._end = max(self._end, end)
        self._own_ends[client] = max(self._own_ends.get(client, 0), end)

    def on_fail(self, now_us: int, client: int, append_id: int) -> None:
        """An append is refused: it is not in the log and never will be."""
        append = self._answer(now_us, client, append_id, Outcome.FAIL)
        append.content.failed_count += 1
        self._check_copies(append.content)

    def on_refused(self, now_us: int, client: int, append_id: int, seq_num: int, key: int) -> None:
        """An append is refused since the log ended at `seq_num`, at the place `key`: Q1 takes that
        as an event of the log's order: after all that was acknowledged before, early or not, and
        before all that is asked later."""
        append = self._appends[client, append_id]
        is_later = seq_num >= append.floor
        self._check("Q1", is_later, append, "is told of", seq_num, "below", append.floor)
        is_later = key >= append.key_floor
        self._check("Q1", is_later, append, _format(key), "below", _format(append.key_floor))
        self.on_fail(now_us, client, append_id)
        self._end = max(self._end, seq_num)

    def on_repeated(self, client: int, append_id: int, dlsn: Dlsn, seq_num: int) -> None:
        """U1: whoever sends a batch of a producer again is told where the first one lies."""
        append = self._appends[client, append_id]
        assert append.outcome is Outcome.OK, append
        is_same = (append.key, append.seq_num) == (key_of(dlsn), seq_num)
        self._check("U1", is_same, append, "was sent again and is told of", dlsn, "seq", seq_num)

    def on_uncertain(self, now_us: int, client: int, append_id: int, *, is_under_way: bool) -> None:
        """An append may be in the log or come to be."""
        append = self._answer(now_us, client, append_id, Outcome.UNCERTAIN)
        append.is_under_way = is_under_way

    def _content_of(self, bodies: tuple[bytes, ...]) -> _Content:
        home = self._homes.get(bodies[0])
        if home is None:
            content = _Content(bodies)
            self._contents.append(content)
            for index, body in enumerate(bodies):
                assert body not in self._homes, f"{body!r} is part of two contents"
                self._homes[body] = (content, index)
            return content
        assert home[0].bodies == bodies, f"{bodies[0]!r} is part of two contents"
        return home[0]

    def _answer(self, now_us: int, client: int, append_id: int, outcome: Outcome) -> _Append:
        """Take an answer. A late one may settle what was uncertain; nothing else is answered twice.

        A client that was told "uncertain" goes on; that its append is settled later is no answer
        that it waited for.
        """
        append = self._appends[client, append_id]
        if append.outcome is Outcome.OPEN:
            self._open_counts[client] -= 1
        else:
            is_settled = append.outcome is Outcome.UNCERTAIN and outcome is not Outcome.UNCERTAIN
            assert is_settled, f"{outcome.value} after the answer to {append}"
        self._step += 1
        append.outcome, append.answered_us, append.answered_step = outcome, now_us, self._step
        return append

    # --- readers ---------------------------------------------------------------------------------

    def on_read(self, reader: int | str, dlsn: Dlsn, seq_num: int, body: bytes) -> None:
        """A reader, or the final read, was given a record."""
        who = "record", dlsn, "seq", seq_num, "for reader", reader
        home = self._homes.get(body)
        self._tally.counts["D3"] += 1
        if home is None:
            raise self._violation("D3", *who, "holds what nobody appended:", body)
        content, index = home
        if not content.copies_max:
            raise self._violation("D3", *who, "holds a refused", content.appends[0])
        key = key_of(dlsn)
        seen = self._seen.get(key)
        if seen is not None:
            self._tally.counts["O1"] += 1
            if seen != (seq_num, body):
                raise self._violation("O1", *who, "was seen before as", seen)
            return
        other_key = self._seen_seq_nums.get(seq_num)
        if other_key is not None:
            raise self._violation("O1", *who, "has a number seen at", _format(other_key))
        append = self._acknowledged.get(key)
        if append is not None:
            at = key - append.key
            number = _number(append, at, seq_num)
            is_same = (number, append.content.bodies[at]) == (seq_num, body)
            self._check("D1", is_same, *who, "is not what was acknowledged there:", append)
        self._seen[key] = (seq_num, content.bodies[index])
        self._seen_seq_nums[seq_num] = key
        if index == 0:
            content.seen_count += 1
            self._check_copies(content)

    def on_tail_asked(self) -> TailQuestion:
        """Somebody asks for the tail."""
        return TailQuestion(self.log_id, self._end_key, self._end, len(self._acknowledged))

    def on_tail(self, now_us: int, question: TailQuestion, dlsn: Dlsn, seq_num: int) -> None:
        """L1: what was acknowledged before the question, early or not, lies below the tail, and
        the tail does not lie beyond what anybody wrote."""
        what = "tail", dlsn, "seq", seq_num, "told at", now_us, "µs lies below what was there:"
        self._check("L1", key_of(dlsn) >= question.end_key, *what, _format(question.end_key))
        self._check("L1", seq_num >= question.end, *what, question.end)
        is_written = seq_num <= self._invoked_count
        self._check("L1", is_written, "tail", dlsn, "seq", seq_num, "of", self._invoked_count)
        self._tails[key_of(dlsn)] = seq_num

    def on_read_to_tail(self, question: TailQuestion, head: Dlsn, found: Collection[Dlsn]) -> None:
        """D1: a read from `head` to the tail brings what was acknowledged before the question."""
        keys, head_key = {key_of(dlsn) for dlsn in found}, key_of(head)
        for key in itertools.islice(self._acknowledged, question.record_count):
            if key >= head_key:
                what = self._acknowledged[key], "does not come before the tail:", _format(key)
                self._check("D1", key in keys, *what)

    # --- the end ---------------------------------------------------------------------------------

    def finish(self, complete: Sequence[Record], head_key: int = 0) -> None:
        """Judge the final complete read; what lies below `head_key` was given up."""
        found = {key_of(dlsn): (seq_num, body) for dlsn, seq_num, body in complete}
        self._check_kept(found, head_key)
        for dlsn, seq_num, body in complete:
            self.on_read("final", dlsn, seq_num, body)
        self._find_appends(complete)
        self._check_tails(complete)
        self._check_uncertain()
        self._check_sessions()

    def read_ms(self, body: bytes) -> int:
        """The timestamp of a record: its client gives it that of the invocation."""
        return self._homes[body][0].appends[0].invoked_us // MS

    def pick_ms(self, rng: random.Random, count: int) -> int:
        """The timestamp of one of the last records that anybody wanted to append."""
        if not self._contents:
            return 0
        content = self._contents[-1 - rng.randrange(min(count, len(self._contents)))]
        return content.appends[0].invoked_us // MS

    def _check_tails(self, complete: Sequence[Record]) -> None:
        """L1: below a tail lie the numbers below its own, and it has no record that never was."""
        keys = [key_of(dlsn) for dlsn, _, _ in complete]
        for key, seq_num in self._tails.items():
            if not keys or key < keys[0]:
                continue
            at = bisect_left(keys, key)
            is_kept = at == 0 or complete[at - 1][1] < seq_num
            if at < len(keys):
                is_kept = is_kept and complete[at][1] >= seq_num
            else:
                is_kept = is_kept and seq_num == complete[-1][1] + 1
            self._check("L1", is_kept, "the tail", _format(key), "seq", seq_num, "never was")

    def _check_kept(self, found: Mapping[int, tuple[int, bytes]], head_key: int) -> None:
        """D1: what was acknowledged is there. O1: so is what a reader was given."""
        for append in self._appends.values():
            if append.outcome is not Outcome.OK or append.key < head_key:
                continue
            for index, body in enumerate(append.content.bodies):
                record = found.get(append.key + index)
                number = -1 if record is None else _number(append, index, record[0])
                is_same = record == (number, body)
                self._check("D1", is_same, append, "record", index, "is read at last as", record)
        for key, seen in self._seen.items():
            if key < head_key:
                continue
            self._tally.counts["O1"] += 1
            if found.get(key) != seen:
                raise self._violation("O1", _format(key), "was", seen, "and is", found.get(key))

    def _find_appends(self, complete: Sequence[Record]) -> None:
        """D3: the log consists of whole appends, each within one entry."""
        at = 0
        while at < len(complete):
            dlsn, seq_num, body = complete[at]
            content, index = self._homes[body]
            key, count = key_of(dlsn), len(content.bodies)
            run = complete[at : at + count]
            is_whole = index == 0 and len(run) == count
            is_whole = is_whole and tuple(record[2] for record in run) == content.bodies
            is_whole = is_whole and [key_of(r[0]) for r in run] == [*range(key, key + count)]
            self._check("D3", is_whole, "a part of", content.appends[0], "lies at", dlsn)
            if key not in self._acknowledged:
                content.unclaimed.append((seq_num, key))
            at += count

    def _check_uncertain(self) -> None:
        """O2, O3: what nobody acknowledged has a place in the order too.

        Of several appends of one content, the earlier invoked is taken for the earlier found: if
        any assignment keeps the order, this one does.
        """
        placed = False
        for content in self._contents:
            content.unclaimed.sort()
            open_ones = [
                append
                for append in content.appends
                if append.outcome in {Outcome.OPEN, Outcome.UNCERTAIN}
            ]
            if len(content.unclaimed) > len(open_ones):
                raise self._violation("U1", content.appends[-1], "lies also at", content.unclaimed)
            for (seq_num, key), append in zip(content.unclaimed, open_ones, strict=False):
                self._check_order(append, seq_num, key)
                if content.copies_max == 1:
                    append.seq_num = seq_num
                    placed = placed or not append.is_under_way
        if placed:
            self._check_decided()

    def _check_decided(self) -> None:
        """O3: an append that was decided when "uncertain" was answered precedes later ones."""
        steps: list[tuple[int, _Append]] = []
        for append in self._appends.values():
            if append.seq_num >= 0:
                steps.append((append.invoked_step, append))
                if append.outcome is Outcome.UNCERTAIN and not append.is_under_way:
                    steps.append((append.answered_step, append))
        decided: dict[int, _Append] = {}
        for step, append in sorted(steps, key=lambda pair: pair[0]):
            before = decided.get(append.client)
            if step != append.invoked_step:
                if before is None or before.seq_num < append.seq_num:
                    decided[append.client] = append
            elif before is not None:
                is_later = append.seq_num > before.seq_num
                self._check("O3", is_later, append, append.seq_num, "precedes", before)

    def _check_sessions(self) -> None:
        """O3: what of a session is in the log lies there in the order in which it was sent."""
        for appends in self._sessions.values():
            placed = [append for append in appends if append.seq_num >= 0]
            for before, append in itertools.pairwise(placed):
                is_later = append.seq_num > before.seq_num
                self._check("O3", is_later, append, "lies before", before, "of its session")

    # --- judgement -------------------------------------------------------------------------------

    def _check_copies(self, content: _Content) -> None:
        """U1: as many copies as appends that may be there; D3 if one of them was refused."""
        self._tally.counts["U1"] += 1
        if content.seen_count > content.copies_max:
            code = "D3" if content.failed_count else "U1"
            text = f"was found at {content.seen_count} places"
            raise self._violation(code, content.appends[-1], text)

    def _check_order(self, append: _Append, seq_num: int, key: int) -> None:
        """O3 against the client's own acknowledged appends, O2 against everybody's."""
        for code, floor in ("O3", append.own_key_floor), ("O2", append.key_floor):
            self._tally.counts[code] += 1
            if key < floor:  # put into words only then
                raise self._violation(code, append, _format(key), "below", _format(floor))
        if seq_num < 0:
            return
        if append.own_floor:
            is_later = seq_num >= append.own_floor
            self._check("O3", is_later, append, "seq", seq_num, "below", append.own_floor)
        if append.floor:
            is_later = seq_num >= append.floor
            self._check("O2", is_later, append, "seq", seq_num, "below", append.floor)

    def _check(self, code: str, is_kept: bool, *what: object) -> None:
        self._tally.check(code, is_kept, "log", self.log_id, *what)

    def _violation(self, code: str, *what: object) -> Violation:
        return Violation(code, format_text("log", self.log_id, *what))


def _number(append: _Append, at: int, seen: int) -> int:
    """The number of a record of an append; an early one is learnt from the first that is seen."""
    if append.seq_num < 0:
        append.seq_num = seen - at
    return append.seq_num + at


def key_of(dlsn: Dlsn) -> int:
    """A DLSN as one number; the next slot's is greater by one."""
    epoch, entry, slot = dlsn
    return epoch << 64 | entry << 32 | slot


def _format(key: int) -> str:
    return f"e{key >> 64}n{key >> 32 & 0xFFFF_FFFF}s{key & 0xFFFF_FFFF}"
