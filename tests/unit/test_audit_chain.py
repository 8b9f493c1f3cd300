"""Audit records and their check: what is written is read, and what is done to a log is found.

Source: docs/protocol/audit.md "Chains", docs/protocol/audit.md "What a check finds".
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from duramen.core.audit.chain import AuditChain, ChainHead, ChainLink
from duramen.core.audit.verification import ChainFlaw
from duramen.wire.edge.audit_records import (
    CALL,
    END,
    RECORD_BYTES_MAX,
    START,
    AuditRecordError,
    read_record,
    seal_record,
)
from tests.unit.audit_lines import check_lines

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "protocol" / "audit.md"
ATTACK_COUNT: Final = 1_000
Attack = Callable[[random.Random, list[bytes]], list[bytes]]


class Node:
    """A process that writes, ends cleanly or not, and starts again with its folder."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.head: ChainHead | None = None
        self.chain = AuditChain(name)

    def begin(self, start: int) -> bytes:
        self.chain = AuditChain(f"{self.name}/{start:x}-0000")
        return self.write(START, former=self.head)

    def write(self, kind: str, **members: object) -> bytes:
        record = seal_record(self.chain.find_next(), kind, {"at": "2026", **members})
        self.head = self.chain.advance(record.digest)
        return record.line


def write_log(rng: random.Random) -> list[bytes]:
    """Three nodes, two runs each, the first of which ends cleanly or not; interleaved."""
    nodes = [Node(f"writeproxy/wp-{number}") for number in range(3)]
    plays = []
    for number, node in enumerate(nodes):
        lines = []
        for run in range(2):
            lines.append(node.begin(number * 16 + run))
            lines += [
                node.write(CALL, who="user:corp/ann", target=f"shop/{rng.randrange(99)}")
                for _ in range(rng.randrange(3, 9))
            ]
            if run == 0 and rng.random() < 0.5:
                lines.append(node.write(END))
        plays.append(lines)
    log = []
    while any(plays):
        log.append(rng.choice([one for one in plays if one]).pop(0))
    return log


def list_newest(log: Sequence[bytes]) -> set[int]:
    """Where the newest record of each chain without an end stands, which no other vouches for."""
    check, _ = check_lines(log)
    newest = {head.digest for head in check.list_open()}
    return {at for at, line in enumerate(log) if read_record(line).checked.digest in newest}


def edit(rng: random.Random, log: list[bytes]) -> list[bytes]:
    at = rng.randrange(len(log))
    line = bytearray(log[at])
    line[rng.randrange(len(line))] ^= 1 << rng.randrange(8)
    return [*log[:at], bytes(line), *log[at + 1 :]]


def respell(rng: random.Random, log: list[bytes]) -> list[bytes]:
    """By somebody who spells the digest anew, where another record follows."""
    at = rng.choice(sorted(set(range(len(log))) - list_newest(log)))
    place = read_record(log[at]).checked.link
    forged = seal_record(place, CALL, {"who": "user:corp/eve"}).line
    return [*log[:at], forged, *log[at + 1 :]]


def drop(rng: random.Random, log: list[bytes]) -> list[bytes]:
    at = rng.choice(sorted(set(range(len(log))) - list_newest(log)))
    return [*log[:at], *log[at + 1 :]]


def swap(rng: random.Random, log: list[bytes]) -> list[bytes]:
    """Two records of one chain: those of two chains come in any order, and follow nothing."""
    chains: dict[str, list[int]] = {}
    for at, line in enumerate(log):
        chains.setdefault(read_record(line).checked.link.chain, []).append(at)
    first, second = rng.sample(rng.choice(list(chains.values())), 2)
    swapped = list(log)
    swapped[first], swapped[second] = log[second], log[first]
    return swapped


@pytest.mark.parametrize("attack", [edit, respell, drop, swap])
def test_each_of_a_thousand_attacks_is_found(attack: Attack) -> None:
    rng = random.Random(7)
    for number in range(ATTACK_COUNT):
        log = write_log(rng)
        assert check_lines(log)[1] == [], number
        attacked = attack(rng, log)
        assert check_lines(attacked)[1], (number, attacked)


def test_what_is_cut_off_an_open_chain_is_found_once_its_node_starts_again() -> None:
    node = Node("readproxy/rp-0")
    log = [node.begin(1), *(node.write(CALL, who=None) for _ in range(3))]
    check, found = check_lines(log[:-1])
    assert (found, [head.n for head in check.list_open()]) == ([], [2])
    later = [*log[:-1], node.begin(2)]
    check, found = check_lines(later)
    assert [(one.flaw, one.detail) for one in found] == [
        (ChainFlaw.MISSING, "records 3 to 3 are missing")
    ]
    assert check_lines([node.begin(3)])[1][0].flaw is ChainFlaw.MISSING


def test_what_a_node_says_of_anothers_chain_is_told_of_its_own() -> None:
    """A stolen key may write any `former`; an id that was changed names a record that is there."""
    honest, thief = Node("writeproxy/wp-0"), Node("bookie/b-1")
    log = [honest.begin(1), honest.write(CALL, who=None)]
    living = honest.chain.name
    made_up = (
        ChainHead(living, 1_000_000, "1" * 64),
        ChainHead(living, 1, "1" * 64),
        ChainHead("writeproxy/wp-9/1-0000", 1_000_000, "1" * 64),
    )
    for number, head in enumerate(made_up):
        thief.head = head
        log.append(thief.begin(number))
        found = check_lines(log)[1][number:]
        assert [(one.chain, one.flaw) for one in found] == [(thief.chain.name, ChainFlaw.MISSING)]
        assert f"{head.n} of {head.chain}" in found[0].detail
    renamed = Node("writeproxy/wp-1")
    renamed.head = honest.head
    log += [renamed.begin(9), honest.write(CALL, who=None)]
    renamed.head = ChainHead(living, 1, read_record(log[1]).checked.digest)
    log.append(renamed.begin(10))
    check, found = check_lines(log)
    assert len(found) == len(made_up), "neither is what it really wrote behind its end"
    assert living in {head.chain for head in check.list_open()}, "nobody else ends it"


def test_doubles_are_counted_and_no_fault_unless_they_differ() -> None:
    node = Node("writeproxy/wp-0")
    log = [node.begin(1), *(node.write(CALL, who=None) for _ in range(3))]
    check, found = check_lines([*log[:3], *log[1:3], log[3]])
    assert (found, check.double_count) == ([], 2)
    forged = seal_record(ChainLink(node.chain.name, 2, "0" * 64), CALL, {}).line
    assert [one.flaw for one in check_lines([*log, forged])[1]] == [ChainFlaw.CHANGED]


def test_a_check_that_begins_later_takes_the_first_chain_of_a_node_from_the_middle() -> None:
    node = Node("writeproxy/wp-0")
    log = [node.begin(1), *(node.write(CALL, who=None) for _ in range(3))]
    assert check_lines(log[2:], is_whole=False)[1] == []
    assert [one.flaw for one in check_lines(log[2:])[1]] == [ChainFlaw.MISSING]
    log += [node.write(END), node.begin(2), node.write(CALL, who=None)]
    cut = [*log[2:5], log[6]]
    assert [one.flaw for one in check_lines(cut, is_whole=False)[1]] == [ChainFlaw.MISSING]


def test_nothing_comes_behind_an_end() -> None:
    node = Node("writeproxy/wp-0")
    log = [node.begin(1), node.write(END), node.write(CALL, who=None)]
    assert [one.flaw for one in check_lines(log)[1]] == [ChainFlaw.CHANGED]


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"x" * 20_000, b'{"v":1}', seal_record(ChainLink("a/b", 0, "x"), CALL, {}).line,
     seal_record(ChainLink("alone", 0, "0" * 64), CALL, {}).line,
     seal_record(ChainLink("a/b", -1, "0" * 64), CALL, {}).line,
     seal_record(ChainLink("a/b", 0, "0" * 64), START, {"former": ["c/d", 1]}).line],
)  # fmt: skip
def test_what_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(AuditRecordError):
        read_record(line)


def test_a_record_has_the_members_of_the_page_and_fits() -> None:
    start = PAGE.read_text().index('{"v":1,')
    example = json.loads(PAGE.read_text()[start : PAGE.read_text().index("\n", start)])
    names = ("who", "from", "verb", "target", "outcome", "status", "request")
    members = {"at": "2026", **dict.fromkeys(names, '"' * 255)}
    sealed = seal_record(ChainLink("writeproxy/wp-0/1-0", 7, "0" * 64), CALL, members)
    assert list(json.loads(sealed.line)) == list(example)
    assert len(sealed.line) <= RECORD_BYTES_MAX
    assert read_record(sealed.line).members["who"] == '"' * 255
