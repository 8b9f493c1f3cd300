"""Quorum arithmetic against brute force: write sets, and when responders cover every ack set (R12).

Hypothesis draws shapes and responders; every ack set of every write set is enumerated.
Source: docs/protocol/write.md "Write sets", docs/protocol/recovery.md "Seal".
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.core.quorum import Quorum, covers, write_set, write_sets
from duramen.ids import BookieId, EntryId, Incarnation, Member


def members(count: int) -> tuple[Member, ...]:
    return tuple(Member(BookieId(f"b{i}"), Incarnation("0" * 32)) for i in range(count))


@st.composite
def quorums(draw: st.DrawFn) -> Quorum:
    ensemble = draw(st.integers(1, 7))
    write = draw(st.integers(1, ensemble))
    return Quorum(ensemble, write, draw(st.integers(1, write)))


@given(quorums(), st.sets(st.integers(0, 6)))
def test_r12_covers_is_what_brute_force_says(quorum: Quorum, indices: set[int]) -> None:
    ensemble = members(quorum.ensemble_size)
    responders = {ensemble[i] for i in sorted(indices) if i < len(ensemble)}
    sets = write_sets(ensemble, quorum)
    ack_sets = [
        ack_set
        for one in sets
        for ack_set in itertools.combinations(one, quorum.ack_quorum)
    ]  # fmt: skip
    expected = all(any(member in responders for member in ack_set) for ack_set in ack_sets)
    assert covers(responders, sets, quorum.ack_quorum) == expected


@given(quorums(), st.data())
def test_r12_cover_count_members_of_a_write_set_always_cover_it(
    quorum: Quorum, data: st.DataObject
) -> None:
    (one, *_) = write_sets(members(quorum.ensemble_size), quorum)
    order = data.draw(st.permutations(one))
    assert covers(order[: quorum.cover_count], (one,), quorum.ack_quorum)
    assert not covers(order[: quorum.cover_count - 1], (one,), quorum.ack_quorum)


def test_r12_a_majority_is_wrong() -> None:
    five = members(5)
    assert not covers(five[:3], write_sets(five, Quorum(5, 5, 2)), 2), "four are needed"
    assert covers(five[:4], write_sets(five, Quorum(5, 5, 2)), 2)
    assert covers(five[:1], write_sets(five, Quorum(5, 5, 5)), 5), "one is enough"


def test_strangers_cover_nothing() -> None:
    strangers = [Member(one.bookie, Incarnation("f" * 32)) for one in members(3)]
    assert not covers(strangers, write_sets(members(3), Quorum(3, 3, 2)), 2)


@given(quorums(), st.integers(0, 2**32 - 2))
def test_a_write_set_is_a_run_of_the_ensemble(quorum: Quorum, entry: int) -> None:
    ensemble = members(quorum.ensemble_size)
    one = write_set(ensemble, quorum, EntryId(entry))
    assert len(one) == len(set(one)) == quorum.write_quorum
    assert one in write_sets(ensemble, quorum)
    if quorum.write_quorum < quorum.ensemble_size:
        start = entry % quorum.ensemble_size
        assert one == tuple((*ensemble, *ensemble)[start : start + quorum.write_quorum])


@pytest.mark.parametrize("shape", [(2, 3, 2), (3, 2, 3), (3, 3, 0), (0, 0, 0), (3, -1, -1)])
def test_shapes_that_cannot_be_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must hold"):
        Quorum(*shape)
