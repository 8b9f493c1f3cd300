"""The writer's window against brute force: any order of any answers acknowledges what R5 says.

Hypothesis draws the quorum, how much is added between answers, and answers of members and of
strangers, doubled and in any order; the model keeps all of them and asks R5 and R8 anew each time.
Here nothing fails: ensemble changes are in `test_ledger_writer` and in the simulator.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duramen.core.quorum import Quorum
from tests.unit.writer_driver import OK, Driver

ENTRY_COUNT_MAX = 12

quorums = st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5)).map(
    lambda sizes: Quorum(*sorted(sizes, reverse=True))
)
steps = st.lists(
    st.one_of(
        st.just(("add", 0, "")),
        st.tuples(
            st.just("ok"),
            st.integers(0, ENTRY_COUNT_MAX - 1),
            st.sampled_from(["b0", "b1", "b2", "b3", "b4", "stranger"]),
        ),
    ),
    max_size=60,
)


class Model:
    """Every answer so far, and what R5 makes of them."""

    def __init__(self, quorum: Quorum, ack_mode: str) -> None:
        self.quorum = quorum
        self.is_ordered = ack_mode == "ordered"
        self.added_count = 0
        self.answers: list[tuple[int, str]] = []

    def acknowledged(self) -> list[int]:
        found = []
        for entry in range(self.added_count):
            if self.has_quorum(entry):
                found.append(entry)
            elif self.is_ordered:
                break
        return found

    def has_quorum(self, entry: int) -> bool:
        size, copies = self.quorum.ensemble_size, self.quorum.write_quorum
        members = {f"b{(entry + k) % size}" for k in range(copies)}
        holders = {name for answered, name in self.answers if answered == entry}
        return len(holders & members) >= self.quorum.ack_quorum

    def lac(self) -> int:
        dense = [e for e, acked in enumerate(self.acknowledged()) if e == acked]
        return dense[-1] if dense else -1


@given(quorums, st.sampled_from(["ordered", "out_of_order"]), steps)
def test_the_window_acknowledges_what_the_rule_says(
    quorum: Quorum, ack_mode: str, steps: list[tuple[str, int, str]]
) -> None:
    driver, model = Driver(quorum=quorum, ack_mode=ack_mode), Model(quorum, ack_mode)
    acknowledged: list[int] = []
    for step, entry, name in steps:
        if step == "add" and model.added_count < ENTRY_COUNT_MAX:
            driver.add()
            model.added_count += 1
        elif step == "ok" and entry < model.added_count:
            acknowledged += driver.answer(entry, name, OK)
            model.answers.append((entry, name))
        assert sorted(acknowledged) == model.acknowledged()
        assert len(acknowledged) == len(set(acknowledged))
        assert driver.writer.lac == model.lac()
        lowest = model.lac() + 1
        assert [sent.entry for sent in driver.writer.window] == [*range(lowest, model.added_count)]
