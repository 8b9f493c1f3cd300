"""The judge of chaos runs rejects every bad history, for its own invariant, and no good one.

A history is a few lines made by `append`, `read`, `tail`; times are seconds. Each bad one differs
from a good one in the fact that its name tells.
"""

from __future__ import annotations

import pytest

from tests.chaos.history import FINAL, Line, find_gaps
from tests.chaos.judge import judge
from tests.chaos.lines import A0, A1, B0, BATCHES, LOG, REFUSED, UNSURE, append, hashes, read, tail


def segments(*rows: tuple[int, str, int | None, int | None]) -> Line:
    """What the read proxy says: (epoch, state, first sequence number, records) each."""
    names = ("epoch", "state", "start_seq_num", "records")
    return {
        "op": "segments",
        "log": LOG,
        "segments": [dict(zip(names, row, strict=True)) for row in rows],
    }


WHOLE = read(f"{FINAL}-0", 90, 91, *BATCHES)
GOOD = [A0, A1, B0, WHOLE]


def codes(*lines: Line, must_be_definite: bool = False, is_ordered: bool = True) -> set[str]:
    """What the judge finds in a history, whatever the order of its lines."""
    found = []
    for order in (lines, lines[::-1]):
        judged = judge(LOG, order, must_be_definite=must_be_definite, is_ordered=is_ordered)
        found.append({violation.code for violation in judged.violations})
    assert bool(found[0]) == bool(found[1]), "the order of the lines must not matter"
    return found[0] & found[1]


def whole(*batches: tuple[str, int, list[int]]) -> Line:
    return read(f"{FINAL}-0", 90, 91, *batches)


def test_a_good_history_is_good() -> None:
    judged = judge(LOG, [*GOOD, tail(5, 6, 3), read("r", 5, 6, *BATCHES[1:], **{"from": 1})])
    assert judged.violations == []
    verdict = judged.verdict()
    assert verdict.counts["ok"] == 3 and list(verdict.ack_times_ns) == sorted(
        line["t1_ns"] for line in (A0, A1, B0)
    )


def test_an_uncertain_append_may_be_there_or_not() -> None:
    there = ("e2n0s0", 3, hashes("c", 0, 2))
    assert codes(*GOOD, UNSURE) == set()
    assert codes(A0, A1, B0, UNSURE, whole(*BATCHES, there)) == set()


def test_an_uncertain_append_may_come_after_a_later_one_of_its_writer() -> None:
    later = append("c", 1, 7, 8, 3, dlsn="e1n3s0")
    batches = (*BATCHES, ("e1n3s0", 3, hashes("c", 1)), ("e2n0s0", 4, hashes("c", 0, 2)))
    assert codes(A0, A1, B0, UNSURE, later, whole(*batches)) == set()


def test_a_truncated_prefix_may_be_gone() -> None:
    truncate = {"op": "truncate", "log": LOG, "end": 2, "outcome": "info", "proc": "t"}
    jump = read("r", 60, 61, BATCHES[2], **{"from": 0})
    assert codes(A0, A1, B0, truncate, jump, whole(BATCHES[2])) == set()


def test_segments_that_add_up_are_good() -> None:
    last = append("b", 1, 5, 6, 3, dlsn="e3n0s0")
    batches = (*BATCHES, ("e3n0s0", 3, hashes("b", 1)))
    rows = segments((1, "CLOSED", 0, 3), (2, "CLOSED", 3, 0), (3, "OPEN", 3, None))
    assert codes(A0, A1, B0, last, whole(*batches), rows) == set()


BAD: dict[str, tuple[str, list[Line]]] = {
    "an acknowledged append is missing at the end": ("D1", [A0, A1, B0, whole(*BATCHES[:2])]),
    "nobody can read anything in the end": ("D1", [A0, A1, B0]),
    "an acknowledged append is elsewhere": (
        "D1",
        [A0, A1, append("b", 0, 1, 4, 3), whole(*BATCHES)],
    ),
    "an acknowledged append has another DLSN": (
        "D1",
        [A0, A1, append("b", 0, 1, 4, 2, dlsn="e1n7s0"), whole(*BATCHES)],
    ),
    "fewer positions than records": (
        "D1",
        [A0, A1, append("b", 0, 1, 4, 2, 2, end=3), whole(*BATCHES)],
    ),
    "complete reads end at different places": (
        "D1",
        [A0, A1, B0, UNSURE, WHOLE,
         read(f"{FINAL}-1", 92, 93, *BATCHES, ("e2n0s0", 3, hashes("c", 0, 2)))],
    ),
    "a record that nobody appended": (
        "D3",
        [A0, A1, B0, whole(*BATCHES, ("e1n3s0", 3, hashes("nobody", 0)))],
    ),
    "a record of a refused append": (
        "D3",
        [A0, A1, B0, REFUSED, whole(*BATCHES, ("e1n3s0", 3, hashes("c", 0)))],
    ),
    "half of an append": (
        "D3",
        [A0, A1, B0, UNSURE, whole(*BATCHES, ("e2n0s0", 3, hashes("c", 0, 2)[:1]))],
    ),
    "two readers see two bytes at one place": (
        "O1",
        [A0, A1, B0, UNSURE, WHOLE, read("r", 3, 4, ("e1n2s0", 2, hashes("c", 0, 2)[:1]))],
    ),
    "two readers see one record at two DLSNs": (
        "O1",
        [*GOOD, read("r", 3, 4, ("e2n0s0", 2, hashes("b", 0)), tail=False)],
    ),
    "acknowledged before, and behind": (
        "O2",
        [append("a", 0, 1, 2, 1), append("b", 0, 3, 4, 0),
         whole(("e1n0s0", 0, hashes("b", 0)), ("e1n1s0", 1, hashes("a", 0)))],
    ),
    "appended below what a reader had seen": (
        "O2",
        [append("a", 0, 1, 9, 1), append("b", 0, 5, 6, 0),
         read("r", 2, 3, ("e1n1s0", 1, hashes("a", 0)), tail=False),
         whole(("e1n0s0", 0, hashes("b", 0)), ("e1n1s0", 1, hashes("a", 0)))],
    ),
    "appended below a tail that was told": (
        "O2",
        [append("a", 0, 1, 9, 1), append("b", 0, 5, 6, 0), tail(2, 3, 2),
         whole(("e1n0s0", 0, hashes("b", 0)), ("e1n1s0", 1, hashes("a", 0)))],
    ),
    "an uncertain append below what was acknowledged before it began": (
        "O2",
        [append("a", 0, 1, 2, 2), UNSURE,
         whole(("e1n0s0", 0, hashes("c", 0, 2)), ("e1n2s0", 2, hashes("a", 0)))],
    ),
    "one writer's appends change places": (
        "O3",
        [append("a", 0, 1, 2, 1), append("a", 1, 3, 4, 0),
         whole(("e1n0s0", 0, hashes("a", 1)), ("e1n1s0", 1, hashes("a", 0)))],
    ),
    "one writer's appends in flight together change places": (
        "O3",
        [append("a", 0, 1, 4, 1), append("a", 1, 2, 3, 0),
         whole(("e1n0s0", 0, hashes("a", 1)), ("e1n1s0", 1, hashes("a", 0)))],
    ),
    "a retry left two copies": ("U1", [A0, A1, B0, whole(*BATCHES, ("e2n0s0", 3, hashes("b", 0)))]),
    "a gap in sequence numbers": (
        "G1",
        [A0, B0, whole(BATCHES[0], BATCHES[2])],
    ),
    "a complete read that leaves a gap between two answers": (
        "G1",
        [A0, B0, read(f"{FINAL}-0", 80, 81, BATCHES[0], tail=False), whole(BATCHES[2])],
    ),
    "DLSNs that fall": (
        "G1",
        [A0, append("a", 1, 3, 4, 1, dlsn="e1n0s0"), append("b", 0, 1, 2, 2),
         whole(("e1n5s0", 0, hashes("a", 0)), *BATCHES[1:])],
    ),
    "an entry that begins in its middle": (
        "G1",
        [A0, A1, append("b", 0, 1, 4, 2, dlsn="e1n2s1"),
         whole(*BATCHES[:2], ("e1n2s1", 2, hashes("b", 0)))],
    ),
    "a read that begins elsewhere than it was asked to": (
        "G1",
        [*GOOD, read("r", 5, 6, *BATCHES[1:], **{"from": 0})],
    ),
    "a segment number is left out": (
        "G1",
        [*GOOD, segments((1, "CLOSED", 0, 3), (3, "OPEN", 3, None))],
    ),
    "a segment that counts more than it holds": (
        "G1",
        [*GOOD, segments((1, "CLOSED", 0, 4), (2, "OPEN", 4, None))],
    ),
    "a segment that says where it begins and is wrong": (
        "G1",
        [*GOOD, segments((1, "CLOSED", 1, 2), (2, "OPEN", 3, None))],
    ),
    "an open segment below another": (
        "G1",
        [*GOOD, segments((1, "OPEN", 0, None), (2, "OPEN", None, None))],
    ),
    "a tail below what was acknowledged": ("L1", [*GOOD, tail(5, 6, 2)]),
    "a tail that falls": ("L1", [A0, append("a", 1, 3, 99, 1), append("b", 0, 1, 99, 2), WHOLE,
                                 tail(5, 6, 3), tail(7, 8, 2)]),
    "a reader at the tail before the tail": (
        "L1",
        [*GOOD, read("r", 5, 6, *BATCHES[:2])],
    ),
    "a tail beyond everything": ("L1", [*GOOD, tail(5, 6, 4)]),
    "read once and gone": (
        "L1",
        [A0, A1, UNSURE, read("r", 7, 8, ("e1n2s0", 2, hashes("c", 0, 2))), whole(*BATCHES[:2])],
    ),
    "records gone that nobody truncated": ("T1", [A0, A1, B0, whole(*BATCHES[1:])]),
    "records gone above the truncation": (
        "T1",
        [A0, A1, B0, {"op": "truncate", "log": LOG, "end": 1, "outcome": "ok", "proc": "t"},
         whole(*BATCHES[2:])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_rejected(name: str) -> None:
    code, lines = BAD[name]
    assert code in codes(*lines), name


# --- Logs that acknowledge out of order ----------------------------------------------------------

HOLE = [1, 2]
HOLED = read(f"{FINAL}-0", 90, 91, BATCHES[0], BATCHES[2], gaps=[HOLE])
HOLED_SEGMENTS = segments((1, "CLOSED", 0, 3), (2, "OPEN", 3, None))
HOLED_SEGMENTS["segments"][0]["holes"] = [HOLE]


def test_a_hole_that_everybody_is_told_of_is_no_gap() -> None:
    begins = read("r", 5, 6, BATCHES[2], gaps=[HOLE], start=1, **{"from": 1})
    ends = read("r", 5, 6, BATCHES[0], gaps=[HOLE], end=2, tail=False)
    alone = read("r", 5, 6, gaps=[HOLE], start=1, end=2, tail=False, **{"from": 1})
    assert codes(A0, B0, HOLED, HOLED_SEGMENTS, is_ordered=False) == set()
    assert codes(A0, B0, HOLED, begins, ends, alone, is_ordered=False) == set()


def test_what_is_acknowledged_may_be_shown_later() -> None:
    """B0 is acknowledged at 4 s, and A1 before it is not, so that readers get A0 alone."""
    late = append("a", 1, 3, 60, 1)
    shown = [tail(5, 6, 1), read("r", 5, 6, BATCHES[0])]
    told = {**tail(7, 8, 1), "acknowledged": 3}
    assert codes(A0, late, B0, WHOLE, *shown, told, is_ordered=False) == set()
    assert codes(A0, late, B0, WHOLE, *shown) == {"L1"}


BAD_OUT_OF_ORDER: dict[str, tuple[str, list[Line]]] = {
    "an acknowledged append lies in a hole": ("D1", [A0, A1, B0, HOLED]),
    "a record is another reader's hole": (
        "O1", [A0, B0, HOLED, read("r", 5, 6, ("e1n1s0", 1, hashes("c", 0)), start=1), UNSURE],
    ),
    "a gap that nobody was told of": ("G1", [A0, B0, whole(BATCHES[0], BATCHES[2])]),
    "a hole that is told elsewhere": (
        "G1", [A0, B0, HOLED, read("r", 5, 6, BATCHES[0], BATCHES[2], gaps=[HOLE, [7, 8]])],
    ),
    "a hole in a segment that has none": (
        "G1", [A0, B0, HOLED, segments((1, "CLOSED", 0, 3), (2, "OPEN", 3, None))],
    ),
    "a record of another epoch in a segment with a hole": (
        "G1",
        [A0, append("b", 0, 1, 4, 2, dlsn="e2n0s0"), HOLED_SEGMENTS,
         read(f"{FINAL}-0", 90, 91, BATCHES[0], ("e2n0s0", 2, hashes("b", 0)), gaps=[HOLE])],
    ),
    "an end that is below what was acknowledged": (
        "L1", [*GOOD, {**tail(5, 6, 1), "acknowledged": 2}],
    ),
    "an acknowledged end that is below what is shown": (
        "L1", [*GOOD, {**tail(3, 5, 3), "acknowledged": 2}],
    ),
    "a tail of what is shown that falls": ("L1", [*GOOD, tail(5, 6, 3), tail(7, 8, 2)]),
    "appended below an acknowledged end": (
        "O2",
        [append("a", 0, 1, 9, 1), append("b", 0, 5, 6, 0), {**tail(2, 3, 0), "acknowledged": 2},
         whole(("e1n0s0", 0, hashes("b", 0)), ("e1n1s0", 1, hashes("a", 0)))],
    ),
    "an acknowledged end beyond everything": (
        "L1", [*GOOD, {**tail(5, 6, 3), "acknowledged": 4}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_OUT_OF_ORDER)
def test_a_bad_history_of_a_log_out_of_order_is_rejected(name: str) -> None:
    code, lines = BAD_OUT_OF_ORDER[name]
    assert code in codes(*lines, is_ordered=False), name


def test_an_ordered_log_has_no_holes() -> None:
    assert "G1" in codes(A0, B0, HOLED, HOLED_SEGMENTS)


def test_numbers_that_are_nobodys_are_found_in_an_answer() -> None:
    batches = [list(batch) for batch in (BATCHES[0], BATCHES[2])]
    assert find_gaps(0, batches, 3) == [(1, 2)]
    assert find_gaps(0, batches[1:], 5) == [(0, 2), (3, 5)]
    assert find_gaps(4, [], 4) == [] and find_gaps(4, [], 6) == [(4, 6)]


def test_with_producers_nothing_may_stay_uncertain() -> None:
    assert codes(*GOOD, UNSURE, must_be_definite=True) == {"definite"}


def test_every_invariant_has_a_bad_history() -> None:
    assert {code for code, _ in BAD.values()} == {
        "D1", "D3", "O1", "O2", "O3", "U1", "G1", "L1", "T1",
    }  # fmt: skip
