"""Judges the history of one log, in one pass: the invariants that can be seen from outside.

    D1  acknowledged is in every complete read, same place and bytes, unless truncated
    D3  nothing is read that was not appended, nothing of a refused append, no part of an append
    O1  (log, DLSN) ↔ (sequence number, bytes, or nobody's) is one function for all readers, always
    O2  what was acknowledged, read or below a tail before an append began precedes it
    O3  one writer's acknowledged appends stand in its order
    U1  each append is there once
    G1  no gap in sequence numbers, DLSNs rise, segments are consecutive and add up
    L1  no tail lies below what was acknowledged, read or told before; all of that can be read
    T1  nothing above the highest truncation that was asked for is gone
    definite  with producers every append got a definite answer

D2, F1, C1, E1 cannot be seen from outside: the simulator has them; P1 is in `copies`. Pure; called
by `run` and fed with bad histories by `test_judge`. Source: docs/testing.md "Invariants", R29.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from duramen.ids import parse_dlsn
from tests.chaos.history import FINAL, Line

VIOLATIONS_MAX: Final = 20
"""More of one log say nothing new."""

_OK, _FAIL, _INFO = 0, 1, 2
_OUTCOMES: Final = {"ok": _OK, "fail": _FAIL, "info": _INFO}
_COUNTED: Final = ("ok", "fail", "info", "info_found", "read", "tail", "truncate", "hole")
_NOWHERE: Final = -1


class Violation(NamedTuple):
    """A broken invariant with its evidence."""

    code: str
    log: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """What is kept of one log when its history is judged.

    Attributes:
        counts: appends by outcome, uncertain ones that were found, reads, tails, truncations,
            sequence numbers in holes.
        codes: why appends were not acknowledged.
        ack_times_ns: when the load was told, rising.
        epoch_count: segments that the log had.
    """

    log: str
    violations: list[Violation]
    counts: dict[str, int]
    codes: dict[str, int]
    ack_times_ns: array[int]
    epoch_count: int


class _Append(NamedTuple):
    t0_ns: int
    t1_ns: int
    writer: str
    number: int
    size: int
    outcome: int
    start: int
    end: int
    dlsn: str

    def __str__(self) -> str:
        outcome = ("ok", "fail", "info")[self.outcome]
        place = f" at [{self.start}, {self.end}) {self.dlsn}" if self.outcome == _OK else ""
        return f"append {self.writer}/{self.number} ({outcome}{place}, {_span(self)})"


class _Told(NamedTuple):
    """An answer to a reader."""

    t0_ns: int
    t1_ns: int
    proc: str
    kind: str
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.kind} [{self.start}, {self.end}) of {self.proc} ({_span(self)})"


class _Seen(NamedTuple):
    """From `t1_ns` on everything below `end` is settled: somebody was told so."""

    t1_ns: int
    end: int
    what: _Append | _Told
    is_shown: bool = True
    """It can be read; False: it is acknowledged, and will be."""


class _Claim(NamedTuple):
    """Something that began at `t0_ns` and must lie at or above what was settled before."""

    t0_ns: int
    place: int
    what: _Append | _Told
    is_of_shown: bool = False
    """It speaks of what can be read alone."""


@dataclass
class _Content:
    """What was read: for each sequence number its hash (0: never read) and DLSN."""

    hashes: array[int] = field(default_factory=lambda: array("Q"))
    lsns: array[int] = field(default_factory=lambda: array("Q"))
    slots: array[int] = field(default_factory=lambda: array("I"))

    def grow(self, end: int) -> None:
        missing = end - len(self.hashes)
        if missing > 0:
            self.hashes.extend([0] * missing)
            self.lsns.extend([0] * missing)
            self.slots.extend([0] * missing)


class LogJudge:
    """Takes the lines of one log in any order, then gives a verdict.

    A log that acknowledges out of order has holes, which are told, and what is acknowledged is
    shown a little later: there no tail of what is shown lies below what was shown before, and no
    tail of what is acknowledged below anything. Of an ordered log a hole is a gap (G1).
    """

    def __init__(self, log: str, *, is_ordered: bool = True) -> None:
        self.log = log
        self._is_ordered = is_ordered
        self._holes: dict[int, _Told] = {}
        """Sequence numbers that are nobody's, as somebody was told."""
        self.violations: list[Violation] = []
        self._ack_times_ns: list[int] = []
        self.counts = dict.fromkeys(_COUNTED, 0)
        self.codes: dict[str, int] = {}
        self._content = _Content()
        self._appends: list[_Append] = []
        self._owners: dict[int, tuple[int, int]] = {}
        self._seen: list[_Seen] = []
        self._claims: list[_Claim] = []
        self._finals: dict[str, list[tuple[int, int, int]]] = {}
        self._trim_limit = 0
        self._jumps: list[tuple[int, _Told]] = []
        self._segments: list[Line] | None = None

    def take(self, line: Line) -> None:
        """One line of the history."""
        match line["op"]:
            case "append":
                self._take_append(line)
            case "read":
                self._take_read(line)
            case "tail" if line["outcome"] == "ok":
                self.counts["tail"] += 1
                told = _told(line, "tail", line["end"])
                self._seen.append(_Seen(told.t1_ns, told.end, told))
                self._claims.append(_Claim(told.t0_ns, told.end, told, not self._is_ordered))
                if "acknowledged" in line:
                    self._take_acknowledged(line)
            case "truncate" if line["outcome"] != "fail":
                self.counts["truncate"] += 1
                self._trim_limit = max(self._trim_limit, line["end"])
            case "segments":
                self._segments = line["segments"]

    def finish(self, *, must_be_definite: bool) -> None:
        """Judge; `violations` holds what was found.

        Args:
            must_be_definite: appends had producers, so none may have stayed uncertain.
        """
        first, end = self._judge_finals()
        starts = self._judge_content(first, end)
        self._judge_appends(starts, first, end)
        self._judge_order(starts)
        self._judge_settled(end)
        self.counts["hole"] = len(self._holes)
        if self._segments is not None:
            self._judge_segments(self._segments, first, end)
        if must_be_definite and self.counts["info"]:
            unclear = [a for a in self._appends if a.outcome == _INFO]
            self._note("definite", f"{len(unclear)} appends stayed uncertain, first {unclear[0]}")

    def verdict(self) -> Verdict:
        """The outcome without the history."""
        return Verdict(
            self.log,
            self.violations,
            self.counts,
            self.codes,
            array("q", sorted(self._ack_times_ns)),
            len(self._segments or ()),
        )

    # --- lines -----------------------------------------------------------------------------------

    def _take_acknowledged(self, line: Line) -> None:
        told = _told(line, "acknowledged tail", line["end"])._replace(end=line["acknowledged"])
        if told.end < line["end"]:
            self._note("L1", f"{told} is below what is shown")
        self._seen.append(_Seen(told.t1_ns, told.end, told, is_shown=False))
        self._claims.append(_Claim(told.t0_ns, told.end, told))

    def _take_append(self, line: Line) -> None:
        outcome = _OUTCOMES[line["outcome"]]
        self.counts[line["outcome"]] += 1
        append = _Append(
            line["t0_ns"], line["t1_ns"], line["producer"], line["seq"], line["n"], outcome,
            line.get("start", _NOWHERE), line.get("end", _NOWHERE), line.get("dlsn", ""),
        )  # fmt: skip
        for place, body_hash in enumerate(line["hash"]):
            assert body_hash not in self._owners, f"two appends with one body: {append}"
            self._owners[body_hash] = (len(self._appends), place)
        self._appends.append(append)
        if outcome == _OK:
            self._ack_times_ns.append(append.t1_ns)
            self._seen.append(_Seen(append.t1_ns, append.end, append, self._is_ordered))
            if append.end - append.start != append.size:
                self._note("D1", f"{append} holds {append.size} records")
        else:
            code = line.get("code", "?")
            self.codes[code] = self.codes.get(code, 0) + 1

    def _take_read(self, line: Line) -> None:
        if line["outcome"] != "ok":
            return
        self.counts["read"] += 1
        what = _told(line, "read to the tail" if line["tail"] else "read", line["start"])
        position = line["start"]
        if line["from"] is not None and position != line["from"]:
            self._jumps.append((line["from"], what))
        gaps: dict[int, int] = dict(line.get("gaps", ()))
        for dlsn, seq_num, hashes in line["batches"]:
            position = self._pass_gap(position, gaps, what)
            if seq_num != position:
                self._note("G1", f"{what} goes on at {seq_num} after {position}")
            self._take_records(parse_dlsn(dlsn), seq_num, hashes, what)
            position = seq_num + len(hashes)
        position = self._pass_gap(position, gaps, what)
        if gaps:
            self._note("G1", f"{what} was told of {gaps} elsewhere")
        is_news = bool(line["batches"] or line.get("gaps"))
        if position != line["end"] and is_news:
            self._note("G1", f"{what} ends at {position}")
        if is_news:
            self._seen.append(_Seen(what.t1_ns, what.end, what))
        if line["tail"]:
            self._claims.append(_Claim(what.t0_ns, what.end, what, not self._is_ordered))
        if line["proc"].startswith(FINAL):
            span = (line["t0_ns"], line["start"], line["end"])
            self._finals.setdefault(line["proc"], []).append(span)

    def _pass_gap(self, position: int, gaps: dict[int, int], what: _Told) -> int:
        """Behind the gap that was told to begin here, if there is one."""
        end = gaps.pop(position, position)
        if end > position and self._is_ordered:
            self._note("G1", f"{what} was told that [{position}, {end}) is nobody's")
        self._content.grow(end)
        self._holes |= dict.fromkeys(range(position, end), what)
        return end

    def _take_records(
        self, dlsn: tuple[int, int, int], seq_num: int, hashes: list[int], what: _Told
    ) -> None:
        content = self._content
        content.grow(seq_num + len(hashes))
        lsn = dlsn[0] << 32 | dlsn[1]
        for place, body_hash in enumerate(hashes):
            at, slot = seq_num + place, dlsn[2] + place
            if not content.hashes[at]:
                content.hashes[at], content.lsns[at], content.slots[at] = body_hash, lsn, slot
            elif (content.hashes[at], content.lsns[at], content.slots[at]) != (
                body_hash, lsn, slot,
            ):  # fmt: skip
                here = f"{self._name(body_hash)} at {_format(lsn, slot)}"
                there = f"{self._name(content.hashes[at])} at {self._dlsn_at(at)}"
                self._note("O1", f"{what}: record {at} is {here}, others read {there}")

    # --- verdicts --------------------------------------------------------------------------------

    def _judge_finals(self) -> tuple[int, int]:
        """Complete reads are gapless and agree; where they begin and end."""
        bounds: dict[str, tuple[int, int]] = {}
        for proc, spans in sorted(self._finals.items()):
            spans.sort()
            first, position = spans[0][1], spans[0][1]
            for _, start, end in spans:
                if start != position:
                    self._note("G1", f"{proc} goes on at {start} after {position}")
                position = end
            bounds[proc] = (first, position)
        if not bounds:
            self._note("D1", "nobody could read anything of the whole log after the faults")
            return 0, 0
        if len({end for _, end in bounds.values()}) > 1:
            self._note("D1", f"complete reads end at different places: {bounds}")
        # A truncation of unknown fate may take effect between two of them.
        first, end = max(b[0] for b in bounds.values()), min(b[1] for b in bounds.values())
        if first > self._trim_limit:
            self._note("T1", f"the log begins at {first}, truncated was to {self._trim_limit}")
        for asked, what in self._jumps:
            if not asked < what.start <= self._trim_limit:
                self._note("G1", f"{what} was asked from {asked}")
        return first, end

    def _judge_content(self, first: int, end: int) -> dict[int, int]:
        """Every record is somebody's, once; gives append → where it was found."""
        content, starts, found = self._content, dict[int, int](), dict[int, int]()
        before: tuple[int, int] = (0, 0)
        for seq_num in range(len(content.hashes)):
            body_hash = content.hashes[seq_num]
            if body_hash and seq_num in self._holes:
                here = f"{seq_num} is {self._name(body_hash)}"
                self._note("O1", f"{here}, and nobody's as {self._holes[seq_num]} was told")
            if not body_hash:
                if first <= seq_num < end and seq_num not in self._holes:
                    self._note("G1", f"nobody read record {seq_num}")
                continue
            place = (content.lsns[seq_num], content.slots[seq_num])
            follows = place == (before[0], before[1] + 1) or (place[0] > before[0] and not place[1])
            if seq_num and content.hashes[seq_num - 1] and not follows:
                self._note("G1", f"{seq_num} at {_format(*place)} follows {_format(*before)}")
            before = place
            owner = self._owners.get(body_hash)
            if owner is None:
                self._note("D3", f"record {seq_num} at {_format(*place)} was never appended")
                continue
            index, offset = owner
            append = self._appends[index]
            if append.outcome == _FAIL:
                self._note("D3", f"record {seq_num} is of {append}, which was refused")
            start = starts.setdefault(index, seq_num - offset)
            if start != seq_num - offset:
                self._note("U1", f"{append} is at {start} and at {seq_num - offset}")
            found[index] = found.get(index, 0) + 1
        for index, count in found.items():
            append = self._appends[index]
            if count < append.size and starts[index] >= first:
                self._note("D3", f"{append}: {count} of {append.size} records are there")
        return starts

    def _judge_appends(self, starts: dict[int, int], first: int, end: int) -> None:
        """Acknowledged appends are where they were said to be."""
        for index, append in enumerate(self._appends):
            if append.outcome == _INFO:
                self.counts["info_found"] += index in starts
            if append.outcome != _OK or append.end <= first:
                continue
            start = starts.get(index)
            if start != append.start:
                where = "nowhere" if start is None else f"at {start}"
                self._note("D1", f"{append} is {where}; the log ends at {end}")
            elif append.start >= first and append.dlsn and append.end <= end:
                dlsn = self._dlsn_at(append.start)
                if dlsn != append.dlsn:
                    self._note("D1", f"{append} is at {dlsn}")

    def _judge_order(self, starts: dict[int, int]) -> None:
        """Real-time order between appends, reads and tails; and each writer's own order."""
        for index, append in enumerate(self._appends):
            place = append.start if append.outcome == _OK else starts.get(index, _NOWHERE)
            if place != _NOWHERE:
                self._claims.append(_Claim(append.t0_ns, place, append))
        self._seen.sort(key=lambda seen: seen.t1_ns)
        self._claims.sort(key=lambda claim: claim.t0_ns)
        settled: _Seen | None = None
        shown: _Seen | None = None
        at = 0
        for claim in self._claims:
            while at < len(self._seen) and self._seen[at].t1_ns < claim.t0_ns:
                seen = self._seen[at]
                if settled is None or seen.end > settled.end:
                    settled = seen
                if seen.is_shown and (shown is None or seen.end > shown.end):
                    shown = seen
                at += 1
            floor = shown if claim.is_of_shown else settled
            if floor is not None and claim.place < floor.end:
                text = f"{claim.what} is at {claim.place}, below {floor.what}"
                self._note(_code_of(claim.what, floor.what), text)
        by_writer: dict[str, list[_Append]] = {}
        for append in self._appends:
            if append.outcome == _OK:
                by_writer.setdefault(append.writer, []).append(append)
        for appends in by_writer.values():
            appends.sort(key=lambda append: append.number)
            for earlier, later in itertools.pairwise(appends):
                if later.start < earlier.end:
                    self._note("O3", f"{later} precedes {earlier}")

    def _judge_settled(self, end: int) -> None:
        """What anybody saw or was told is there at the end."""
        highest = max(self._seen, key=lambda seen: seen.end, default=None)
        if highest is not None and highest.end > end:
            self._note("L1", f"the complete read ends at {end}, below {highest.what}")

    def _judge_segments(self, segments: list[Line], first: int, end: int) -> None:
        """Epochs without a gap, all but the last closed, counts that add up to what was read."""
        content = self._content
        for before, after in itertools.pairwise(segments):
            if after["epoch"] != before["epoch"] + 1:
                self._note("G1", f"segment {after['epoch']} follows {before['epoch']}")
            if before["state"] != "CLOSED":
                self._note("G1", f"segment {before['epoch']} is {before['state']} below another")
        for segment in segments:
            start, count = segment["start_seq_num"], segment["records"]
            if segment["state"] != "CLOSED" or start is None or start < first:
                continue
            if self._holes:
                self._judge_holed(segment, start, min(start + count, end))
                continue
            # DLSNs rise, so an epoch's records lie between two places of the sorted column.
            low = bisect_left(content.lsns, segment["epoch"] << 32, first, end)
            high = bisect_left(content.lsns, segment["epoch"] + 1 << 32, first, end)
            if high > low and (low, high) != (start, start + count):
                self._note(
                    "G1",
                    f"segment {segment['epoch']} says [{start}, {start + count}), its records are "
                    f"[{low}, {high})",
                )
            elif high == low and count and start + count <= end:
                self._note("G1", f"segment {segment['epoch']} says {count} records, none is there")

    def _judge_holed(self, segment: Line, start: int, end: int) -> None:
        """Its numbers are its own records' or nobody's, and only the latter have none."""
        content, epoch = self._content, segment["epoch"]
        for seq_num in range(start, end):
            if content.hashes[seq_num] and content.lsns[seq_num] >> 32 != epoch:
                self._note("G1", f"{seq_num} of segment {epoch} is at {self._dlsn_at(seq_num)}")
        holes = [n for n in range(start, end) if n in self._holes]
        if holes and not segment.get("holes"):
            self._note("G1", f"segment {epoch} has no hole, and {holes[:3]} were told to be in one")

    # --- words -----------------------------------------------------------------------------------

    def _note(self, code: str, text: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(code, self.log, text))

    def _name(self, body_hash: int) -> str:
        owner = self._owners.get(body_hash)
        return f"{body_hash:016x}" if owner is None else str(self._appends[owner[0]])

    def _dlsn_at(self, seq_num: int) -> str:
        return _format(self._content.lsns[seq_num], self._content.slots[seq_num])


def judge(
    log: str, lines: Iterable[Line], *, must_be_definite: bool = False, is_ordered: bool = True
) -> LogJudge:
    """The verdict on one log."""
    judged = LogJudge(log, is_ordered=is_ordered)
    for line in lines:
        judged.take(line)
    judged.finish(must_be_definite=must_be_definite)
    return judged


def _format(lsn: int, slot: int) -> str:
    return f"e{lsn >> 32}n{lsn & 0xFFFF_FFFF}s{slot}"


def _span(what: _Append | _Told) -> str:
    return f"{what.t0_ns / 1e9:.3f}–{what.t1_ns / 1e9:.3f} s"


def _told(line: Line, kind: str, start: int) -> _Told:
    return _Told(line["t0_ns"], line["t1_ns"], line["proc"], kind, start, line["end"])


def _code_of(late: _Append | _Told, early: _Append | _Told) -> str:
    """Which invariant is broken when something stands below what was settled before it began."""
    if isinstance(late, _Told):
        return "L1"
    is_own = isinstance(early, _Append) and early.writer == late.writer
    return "O3" if is_own else "O2"
