"""Who sends an entry, by all filters and copysets of four nodes.

Source: docs/protocol/envelopes.md "Read: `POST /b/read`, version 2", V8, V12, V13.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations, product

from duramen.core.flexible.sending import ReadFilter, find_sender, has_to_send
from duramen.ids import EntryId, NodeNumber
from duramen.wire.flexible.envelope import Envelope

NODES = [NodeNumber(number) for number in range(4)]
STRANGER = NodeNumber(9)
BLOCK, OTHER_BLOCK = EntryId(100), EntryId(200)
NOBODY: Mapping[EntryId, NodeNumber] = {}


def list_subsets(nodes: Sequence[NodeNumber]) -> list[tuple[NodeNumber, ...]]:
    """All subsets, in the order of the nodes."""
    return [part for size in range(len(nodes) + 1) for part in combinations(nodes, size)]


UPS = [frozenset(part) for part in list_subsets(NODES)]
COPYSETS = [order for part in list_subsets(NODES)[1:] for order in permutations(part)]
SENDERS = [NOBODY, *({block: node} for block in (BLOCK, OTHER_BLOCK) for node in NODES)]


def list_cases() -> Iterator[tuple[ReadFilter, Envelope]]:
    """Each filter with each envelope."""
    for up, senders, copyset, block in product(UPS, SENDERS, COPYSETS, (None, BLOCK)):
        yield ReadFilter(up, senders), Envelope(copyset, block)


def list_senders(
    read_filter: ReadFilter, copies: Mapping[NodeNumber, Envelope | None]
) -> list[NodeNumber]:
    """Who of these holders sends its copy."""
    return [node for node, copy in copies.items() if has_to_send(read_filter, copy, node)]


def test_one_of_those_who_are_up_sends_where_all_whom_the_copyset_names_hold_the_entry() -> None:
    for read_filter, envelope in list_cases():
        senders = list_senders(read_filter, dict.fromkeys(envelope.copyset, envelope))
        if read_filter.up.isdisjoint(envelope.copyset):
            assert senders == list(envelope.copyset), (read_filter, envelope)
        else:
            assert senders == [find_sender(read_filter, envelope)], (read_filter, envelope)
            assert senders[0] in read_filter.up


def test_it_is_the_blocks_sender_or_the_first_who_is_up() -> None:
    for read_filter, envelope in list_cases():
        up = [node for node in envelope.copyset if node in read_filter.up]
        chosen = read_filter.senders.get(BLOCK) if envelope.block == BLOCK else None
        expected = chosen if chosen in up else next(iter(up), None)
        assert find_sender(read_filter, envelope) == expected, (read_filter, envelope)


def test_who_waits_waits_for_somebody_else_who_is_named_and_up() -> None:
    for read_filter, envelope in list_cases():
        for own in NODES:
            if not has_to_send(read_filter, envelope, own):
                assert own in envelope.copyset
                assert (read_filter.up & set(envelope.copyset)) - {own}, (read_filter, envelope)


def test_who_knows_of_nobody_before_it_sends() -> None:
    for read_filter, envelope in list_cases():
        assert has_to_send(None, envelope, envelope.copyset[-1])
        assert has_to_send(read_filter, None, envelope.copyset[-1])
        assert has_to_send(read_filter, envelope, STRANGER)
        assert has_to_send(read_filter, envelope, None)


def test_v12_a_number_that_the_filter_does_not_name_is_down() -> None:
    for read_filter, envelope in list_cases():
        wider = envelope._replace(copyset=(STRANGER, *envelope.copyset))
        sender = find_sender(read_filter, envelope)
        assert find_sender(read_filter, wider) == sender
        gone = read_filter._replace(senders={BLOCK: STRANGER})
        first = find_sender(read_filter._replace(senders=NOBODY), envelope)
        assert find_sender(gone, wider) == first


def list_copies(block: EntryId | None) -> Iterator[dict[NodeNumber, Envelope]]:
    """Holders of one entry whose copysets have one order, each named in its own."""
    named = [[part for part in list_subsets(NODES) if node in part] for node in NODES]
    for copysets in product(*[[None, *parts] for parts in named]):
        yield {
            node: Envelope(copyset, block)
            for node, copyset in zip(NODES, copysets, strict=True)
            if copyset is not None
        }


def test_v13_holders_of_copysets_of_one_order_never_wait_for_each_other() -> None:
    for copies in list_copies(BLOCK):
        named = {node for copy in copies.values() for node in copy.copyset}
        for up in UPS:
            if not copies or not named & up <= copies.keys():
                continue
            for senders in (NOBODY, {BLOCK: NODES[0]}, {BLOCK: NODES[-1]}):
                found = list_senders(ReadFilter(up, senders), copies)
                assert found, (copies, up, senders)


def test_holders_of_two_orders_may_wait_for_each_other() -> None:
    zero, one = NODES[:2]
    copies = {zero: Envelope((one, zero)), one: Envelope((zero, one))}
    assert list_senders(ReadFilter(frozenset(NODES), NOBODY), copies) == []


def test_a_blocks_sender_that_got_the_entry_by_a_later_wave_waits_for_who_waits_for_it() -> None:
    """What is left to the second asking: a later wave's envelope has no block."""
    zero, one = NODES[:2]
    copies = {zero: Envelope((zero, one), BLOCK), one: Envelope((zero, one))}
    assert list_senders(ReadFilter(frozenset(NODES), {BLOCK: one}), copies) == []
    assert list_senders(ReadFilter(frozenset(NODES), NOBODY), copies) == [zero]
    assert list_senders(ReadFilter(frozenset(NODES) - {one}, {BLOCK: one}), copies) == [zero]
