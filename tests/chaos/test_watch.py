"""What the load sees of a violation while it runs, and that a run strikes no more once one is seen.

Pure but for an event loop: lines of operations are made up as in `test_judge`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from tests.chaos.evidence import Evidence
from tests.chaos.history import Line
from tests.chaos.judge import Violation, judge
from tests.chaos.lines import A0, A1, BATCHES, LOG, REFUSED, UNSURE, append, read, tail
from tests.chaos.watch import SEEN_MAX, Watch
from tests.pauses import stay

LOST = Violation("L1", "log", "the tail went back")


def watch(*lines: Line, is_ordered: bool = True) -> list[str]:
    """The codes of what is seen when operations end one after the other."""
    found = Watch(is_ordered=is_ordered)
    for line in sorted(lines, key=lambda line: line["t1_ns"]):
        found.take(line)
    return [violation.code for violation in found.violations]


GOOD = {
    "appends in order": [A0, A1],
    "appends at once, in whatever order": [append("a", 0, 1, 3, 1), append("b", 0, 1, 4, 0)],
    "a reader behind the tail": [A0, A1, read("r", 5, 6, BATCHES[0], tail=False)],
    "an empty read at the tail": [A0, A1, read("r", 5, 6, start=2, end=2)],
    "a tail that was asked for before": [A0, A1, tail(3, 5, 1)],
    "what has no place": [A0, A1, UNSURE, REFUSED, {**tail(5, 6, 0), "outcome": "fail"}],
}
BAD_FOR_A_WATCH = {
    "an append that was refused for who asked": {**REFUSED, "code": "unauthenticated"},
    "a waiter that was told so": {
        **tail(1, 2, 0),
        "op": "told",
        "outcome": "fail",
        "code": "forbidden",
    },
}


@pytest.mark.parametrize("name", BAD_FOR_A_WATCH)
def test_who_shows_a_token_that_counts_is_never_refused_for_it(name: str) -> None:
    line = BAD_FOR_A_WATCH[name]
    assert watch(A0, line) == ["refused"]
    assert watch(A0, {**line, "code": "metadata_unavailable"}) == []


BAD = {
    "an append below what was acknowledged": ("O2", [A0, A1, append("b", 0, 5, 6, 1)]),
    "an append below what was read": ("O2", [read("r", 1, 2, *BATCHES), append("b", 1, 3, 4, 2)]),
    "an append below a tail": ("O2", [tail(1, 2, 5), append("b", 1, 3, 4, 4)]),
    "a tail below what was acknowledged": ("L1", [A0, A1, tail(5, 6, 1)]),
    "a tail below another": ("L1", [tail(1, 2, 5), tail(3, 4, 4)]),
    "a read to the tail that ends too early": ("L1", [A0, A1, read("r", 5, 6, BATCHES[0])]),
    "an empty read below what was read": (
        "L1", [read("r", 1, 2, *BATCHES), read("r", 5, 6, start=1, end=1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_good_operations_are_not_blamed(name: str) -> None:
    assert watch(*GOOD[name]) == []


@pytest.mark.parametrize("name", BAD)
def test_what_is_seen_at_once_is_what_the_judge_finds(name: str) -> None:
    code, lines = BAD[name]
    assert watch(*lines) == [code]
    assert code in {violation.code for violation in judge(LOG, lines).violations}


def test_of_a_log_out_of_order_what_is_shown_is_compared_with_what_was_shown() -> None:
    early = [A0, A1, tail(5, 6, 1), read("r", 5, 7, BATCHES[0])]
    assert watch(*early) == ["L1", "L1"] and watch(*early, is_ordered=False) == []
    for code, lines in (("O2", [A0, A1, append("b", 0, 5, 6, 1)]), BAD["a tail below another"]):
        assert watch(*lines, is_ordered=False) == [code]
        found = judge(LOG, lines, is_ordered=False).violations
        assert code in {violation.code for violation in found}


def test_logs_are_apart_and_no_more_is_kept_than_is_of_use() -> None:
    assert watch(A0, A1, {**tail(5, 6, 0), "log": "other"}) == []
    assert len(watch(tail(1, 2, 5), *(tail(3, 4 + n, 0) for n in range(100)))) == SEEN_MAX


def test_what_the_load_tells_is_kept_once() -> None:
    evidence = Evidence()
    evidence.note_told({"acked_ns": {}})
    assert not evidence.is_there and evidence.violations == []
    seen = Watch()
    for line in (A0, A1, tail(5, 6, 1)):
        seen.take(line)
    told: dict[str, Any] = orjson.loads(orjson.dumps({"violations": seen.format()}))
    for _ in range(2):
        evidence.note_told(told)
    assert evidence.is_there and evidence.violations == seen.violations
    assert len(seen.violations) == 1


def test_work_ends_when_a_violation_is_seen() -> None:
    async def scenario() -> list[str]:
        evidence, events = Evidence(), list[str]()

        async def strike(*, is_long: bool) -> None:
            try:
                events.append("struck")
                if is_long:
                    await stay()
            finally:
                await asyncio.sleep(0)
                events.append("healed")

        assert await evidence.wait_unless(strike(is_long=False))
        asyncio.get_running_loop().call_soon(evidence.note, LOST)
        assert not await evidence.wait_unless(strike(is_long=True))
        assert evidence.is_there
        return events

    assert asyncio.run(asyncio.wait_for(scenario(), 30)) == ["struck", "healed"] * 2


def test_work_that_fails_fails() -> None:
    async def fail() -> None:
        raise OSError("no more processes")

    async def scenario() -> None:
        await Evidence().wait_unless(fail())

    with pytest.raises(OSError, match="no more processes"):
        asyncio.run(scenario())
