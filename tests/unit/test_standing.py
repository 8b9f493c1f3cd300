"""How every bookie stands: as a question about it alone would say, and whether it lacks copies.

Source: docs/kubernetes/evictions.md 1, docs/protocol/repair.md.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.core.placement import PlacementRule
from duramen.core.quorum import Quorum
from duramen.core.repair.audit import NO_DEBTS, Debts
from duramen.core.repair.cluster_view import ClusterView
from duramen.core.repair.disruption import Disruption
from duramen.core.repair.disruption_grants import DisruptionKind
from duramen.core.repair.drain import Need
from duramen.core.repair.standing import Standing
from duramen.core.segment import Segment
from duramen.ids import BookieId, Member
from tests.unit.flexible_segments import OPEN, close_as_owner
from tests.unit.repair_world import (
    away,
    bookie,
    log_of_segments,
    make_log,
    make_segment,
    member,
    view,
)

NEED = Need(Quorum(3, 3, 2), PlacementRule(2, 1))
NAMES = "abcde"


def stand(
    seen: ClusterView, *segments: tuple[Segment, Debts, bool], unreached: str = ""
) -> dict[str, tuple[bool, list[str], int]]:
    """Name → (there, codes, lacks)."""
    standing = Standing(seen, unreached=[BookieId(name) for name in unreached])
    log = log_of_segments([segment for segment, _, _ in segments])
    standing.note_log(log, NEED)
    for segment, debts, is_orphan in segments:
        standing.note_segment(log, segment, debts, is_orphan=is_orphan)
    return {
        row["bookie"]: (row["there"], [r["code"] for r in row["reasons"]], row["lacks_count"])
        for row in standing.conclude(random.Random(1))
    }


members = st.sets(st.sampled_from(NAMES), max_size=2)
ensembles = st.permutations(NAMES).map(lambda names: "".join(names[:3]))
worlds = st.tuples(ensembles, st.booleans(), st.booleans(), members, members, members)


@settings(max_examples=200)
@given(st.lists(worlds, min_size=1, max_size=3), members, members)
def test_each_row_is_the_answer_about_that_bookie_alone(
    drawn: list[tuple[str, bool, bool, set[str], set[str], set[str]]],
    absent: set[str],
    unreached: set[str],
) -> None:
    seen = view([away(name) if name in absent else bookie(name) for name in NAMES])
    segments: list[tuple[Segment, Debts, bool]] = []
    for number, (names, is_closed, is_proved, owed, damaged, doubtful) in enumerate(drawn, 1):
        last = number == len(drawn)
        is_open = last and not is_closed
        segment = make_segment([(0, names)], None if is_open else 9, epoch=number, proved=is_proved)
        debts = Debts(
            {member(name): ((0, 4),) for name in owed},
            frozenset(map(member, damaged)),
            doubtful=frozenset(map(member, doubtful)),
        )
        segments.append((segment, debts, is_open and is_proved))
    rows = stand(seen, *segments, unreached="".join(unreached))
    log = log_of_segments([segment for segment, _, _ in segments])
    for name in NAMES:
        question = Disruption(
            [BookieId(name)], DisruptionKind.RESTART, seen,
            unreached=[BookieId(one) for one in unreached],
        )  # fmt: skip
        question.note_log(log, NEED)
        for segment, debts, is_orphan in segments:
            question.note_segment(log, segment, debts, is_orphan=is_orphan)
        codes = [reason["code"] for reason in question.conclude(random.Random(1))["reasons"]]
        assert rows[name][:2] == (name not in absent | unreached, codes)
        lacking = [
            segment
            for segment, debts, is_orphan in segments
            if member(name) in segment.fragments[0].ensemble
            and (is_orphan or _is_noted(debts, member(name)))
        ]
        assert rows[name][2] == len(lacking)


def _is_noted(debts: Debts, one: Member) -> bool:
    return one in debts.owed or one in debts.damaged or one in debts.doubtful


def test_a_copy_that_nobody_compared_is_no_lack_of_the_bookies() -> None:
    segment = make_segment([(0, "abc")], 9)
    rows = stand(view([bookie(name) for name in "abc"]), (segment, NO_DEBTS, False))
    assert rows["a"] == (True, ["unproved"], 0)


def test_what_is_no_longer_to_be_read_is_not_lacked() -> None:
    segment = make_segment([(0, "abc"), (5, "abd")], 9, proved=True)
    debts = Debts({member("c"): ((5, 9),)})
    rows = stand(view([bookie(name) for name in "abcd"]), (segment, debts, False))
    assert rows["c"][2] == 0, "it holds entries below 5 alone"


def test_a_new_disk_lacks_nothing_of_what_the_old_one_held() -> None:
    segment = make_segment([(0, "abc")], 9, proved=True)
    seen = view([bookie("a", life=2), bookie("b"), bookie("c")])
    debts = Debts({member("a"): ((0, 9),)})
    rows = stand(seen, (segment, debts, False))
    assert rows["a"][2] == 0 and rows["b"][1] == ["too_few_copies"]


def test_of_what_could_not_be_read_nobody_is_known_to_be_caught_up() -> None:
    standing = Standing(view([bookie(name) for name in "ab"]))
    standing.note_unread("log 7")
    for row in standing.conclude(random.Random(1)):
        assert row["lacks_count"] and [r["code"] for r in row["reasons"]] == ["unread"]


def test_a_flexible_segment_names_who_is_damaged_or_in_doubt() -> None:
    segment = close_as_owner(OPEN)
    rows = segment.nodes
    seen = view([bookie(row.node.bookie, member=row.member) for row in rows])
    log = make_log(segment.log_id, next_epoch=segment.epoch + 1, first_live_epoch=segment.epoch)
    standing = Standing(seen)
    debts = Debts(damaged=frozenset({rows[1].member}), doubtful=frozenset({rows[3].member}))
    assert standing.is_named(log, segment)
    standing.note_segment(log, segment, debts)
    told = {row["bookie"]: row["lacks_count"] for row in standing.conclude(random.Random(1))}
    assert [told[row.node.bookie] for row in rows] == [0, 1, 0, 1, 0]


def test_where_a_recovery_writes_nobody_is_stopped() -> None:
    standing = Standing(view([bookie(name) for name in "ab"]))
    standing.note_recovering([BookieId("a")])
    rows = {row["bookie"]: row for row in standing.conclude(random.Random(1))}
    assert [r["code"] for r in rows["a"]["reasons"]] == ["in_recovery"]
    assert not rows["b"]["reasons"]
