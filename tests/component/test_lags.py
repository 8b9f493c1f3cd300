"""What a sequencer tells of its open segments and recoveries, and what the auditor makes of it.

Writers and recoveries are played; what they say is held by the tests of their cores.
Source: docs/protocol/disruption.md "What owners are asked".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from duramen.core.repair.audit import NO_DEBTS
from duramen.ids import NOTHING, EntryId, LedgerId, Member
from duramen.runtime.sequencer.log_driver import LogDriver
from duramen_sequencer.repair.disruption import lags
from duramen_sequencer.repair.disruption.lags import Lags, ask_lags, report_lags
from tests.unit.repair_world import make_segment, member, members

SEGMENT = make_segment([(0, "abc")])
LEDGER = SEGMENT.ledger_id


class PlayedWriter:
    """A writer that owes one entry until it was looked at so often."""

    def __init__(self, owed_looks: int, behind: tuple[Member, ...] = ()) -> None:
        self.segment = SEGMENT
        self.lap = EntryId(5)
        self.looks_left = owed_looks
        self.behind = behind
        self.asked: list[EntryId] = []

    def owes_up_to(self, last: EntryId) -> bool:
        self.asked.append(last)
        self.looks_left -= 1
        self.lap = EntryId(self.lap + 1)  # the log goes on
        return self.looks_left >= 0

    def list_behind(self, last: EntryId) -> list[Member]:
        self.asked.append(last)
        return list(self.behind) if self.looks_left >= 0 else []


class PlayedDriver:
    """A log with a writer, or with recoveries."""

    def __init__(self, writer: PlayedWriter | None, *recovered: str) -> None:
        self.core = self
        self.writer = writer
        self.older = self
        self.recoveries = [self for _ in recovered[:1]]
        self.members = frozenset(members(recovered))


def report(*drivers: PlayedDriver) -> dict[str, Any]:
    listed = cast(list[LogDriver], list(drivers))
    return asyncio.run(report_lags(lambda: listed))


def test_what_comes_within_a_moment_is_waited_for() -> None:
    writer = PlayedWriter(3, (member("c"),))
    assert report(PlayedDriver(writer)) == {"behind": {str(LEDGER): []}, "recovering": []}
    assert set(writer.asked) == {EntryId(5)}, "only what was appended before the question"


def test_who_lacks_it_still_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lags, "_SETTLED_WITHIN_S", 0.1)
    writer = PlayedWriter(1_000, (member("c"),))
    assert report(PlayedDriver(writer), PlayedDriver(None, "a", "d")) == {
        "behind": {str(LEDGER): [[*member("c")]]}, "recovering": ["a", "d"],
    }  # fmt: skip
    assert len(writer.asked) == 3


def test_of_a_segment_that_was_opened_meanwhile_nobody_is_waited_for() -> None:
    writer = PlayedWriter(1_000, (member("c"),))
    looks: list[list[LogDriver]] = [[], cast(list[LogDriver], [PlayedDriver(writer)])]
    told = asyncio.run(report_lags(lambda: looks.pop(0) if len(looks) > 1 else looks[0]))
    assert told["behind"] == {str(LEDGER): [[*member("c")]]} and writer.asked == [NOTHING]


class PlayedSequencers:
    """Answers of a roster."""

    def __init__(self, answers: dict[str, Any], silent: list[str]) -> None:
        self.answers, self.silent = answers, silent

    async def ask_all(
        self, message: Mapping[str, Any], timeout_us: int = 0
    ) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
        assert message == {"op": "report_lags"}
        return list(self.answers.items()), self.silent

    def weight_of(self, name: str) -> float:
        return 1.0


def ask(answers: dict[str, Any], *silent: str) -> Lags:
    return asyncio.run(ask_lags(PlayedSequencers(answers, list(silent))))


def test_two_who_take_themselves_for_the_owner_are_both_believed() -> None:
    told = ask({
        "s0": {"behind": {"7": [[*member("a")]]}, "recovering": ["b"]},
        "s1": {"behind": {"7": [[*member("c")]], "8": []}, "recovering": ["b", "c"]},
    }, "s2")  # fmt: skip
    assert told.behind == {7: set(members("ac")), 8: set()}
    assert (set(told.recovering), told.answered, told.silent) == ({"b", "c"}, ("s0", "s1"), ("s2",))
    assert told.is_written(LedgerId(8)) and not told.is_written(LedgerId(9))


@pytest.mark.parametrize(
    "answer",
    [{}, {"behind": {}}, {"behind": [], "recovering": []}, {"behind": {"x": []}, "recovering": []},
     {"behind": {"7": [["a"]]}, "recovering": []}, {"behind": {"7": 5}, "recovering": []},
     {"behind": None, "recovering": []}, {"behind": {}, "recovering": 5}],
)  # fmt: skip
def test_an_answer_of_another_form_is_none(answer: dict[str, Any]) -> None:
    told = ask({"s0": answer})
    assert (told.answered, told.silent, told.behind) == ((), ("s0",), {})


A, C = member("a"), member("c")


@pytest.mark.parametrize(
    ("later", "is_news"),
    [
        (Lags({LedgerId(7): frozenset({A})}), False),
        (Lags({LedgerId(7): frozenset()}), False),
        (Lags({LedgerId(7): frozenset({A, C})}), True),
        (Lags({LedgerId(8): frozenset({C})}), True),
        (Lags({LedgerId(9): frozenset({C})}), False),  # read again by itself
        (Lags({}, frozenset({A.bookie})), True),
    ],
)
def test_news_are_what_was_not_said_before(later: Lags, is_news: bool) -> None:
    assert later.has_news_for(Lags({LedgerId(7): frozenset({A})}), {LedgerId(9)}) is is_news


def test_who_is_behind_owes_the_whole_ledger() -> None:
    told = Lags({LEDGER: frozenset({A})})
    debts = told.add_to(LEDGER, NO_DEBTS)
    assert debts.is_owed(A, 0, 0) and debts.is_owed(A, 1 << 30, 1 << 31)
    assert not debts.is_owed(C, 0, 1 << 31)
    assert told.add_to(LedgerId(LEDGER + 1), NO_DEBTS) is NO_DEBTS
