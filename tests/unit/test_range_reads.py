"""What a bookie says of a range of a flexible segment, beside a model that looks entry by entry.

The model knows what is hot, settled and unreadable as sets, and says of each entry of the range in
turn what the page says of it. Not here: bodies, envelopes as bytes (`test_filtered_reads`), long
polls and seals (`test_filtered_polls`). Source: docs/protocol/envelopes.md
"Read: `POST /b/read`, version 2", V8, V9, V10.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from duramen.core.bookie.bookie_state import LedgerState, RangePlan
from duramen.core.bookie.range_choice import AnswerRoom, Choice, MetEntry, Wish, choose, finish
from duramen.core.bookie.range_plan import plan_range
from duramen.core.flexible.sending import ReadFilter, has_to_send
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, LogId, NodeNumber, ledger_of
from duramen.limits import FILTERED_RANGE_COUNT_MAX
from duramen.wire.bookie_calls import ReadRange, ServiceClass
from duramen.wire.flexible.envelope import Envelope
from duramen.wire.flexible.filtered_reads import FilteredRange

LEDGER = ledger_of(LogId(9), Epoch(1))
SPAN = 24
OK = BookieStatus.OK

Met = MetEntry[Envelope]


class World(NamedTuple):
    """A ledger of one bookie: which of a few entries are where, and what lies beside them."""

    hot: frozenset[int]
    settled: frozenset[int]
    unknown: frozenset[int]
    is_doubtful: bool
    lac: int
    envelopes: Mapping[int, Envelope]
    sizes: Mapping[int, int]
    nameless: frozenset[int]
    """Settled entries of which no index can say what they are."""

    @property
    def here(self) -> frozenset[int]:
        return self.hot | self.settled


class Told(NamedTuple):
    """What is said of a range."""

    status: BookieStatus
    next: int
    sent: Sequence[int]
    unvouched: frozenset[int]


numbers = st.integers(0, 3).map(NodeNumber)
envelopes = st.builds(
    Envelope,
    st.lists(numbers, min_size=1, max_size=3, unique=True).map(tuple),
    st.sampled_from([None, EntryId(0), EntryId(8)]),
)
filters = st.builds(
    ReadFilter,
    st.frozensets(numbers),
    st.dictionaries(st.sampled_from([EntryId(0), EntryId(8)]), numbers),
)
entries = st.integers(0, SPAN - 1)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Entries that are each at one place or nowhere; runs of them are more likely than not."""
    where = ["nowhere"] * SPAN
    for first, size, place in draw(
        st.lists(
            st.tuples(
                entries, st.integers(1, 9),
                st.sampled_from(["hot", "settled", "unknown", "nowhere"]),
            ),
            max_size=8,
        )
    ):  # fmt: skip
        where[first : first + size] = [place] * len(where[first : first + size])
    hot, settled, unknown = (
        frozenset(n for n, place in enumerate(where) if place == name)
        for name in ("hot", "settled", "unknown")
    )
    kinds = draw(st.lists(envelopes, min_size=1, max_size=3))
    beside: dict[int, Envelope] = {}
    for number in range(SPAN):
        chosen = draw(st.integers(-1, len(kinds) - 1)) if number % 4 == 0 else -2
        if chosen >= 0 or (chosen == -2 and number - 1 in beside):
            beside[number] = kinds[chosen] if chosen >= 0 else beside[number - 1]
    sizes = {number: draw(st.integers(1, 20)) for number in range(SPAN)}
    nameless = frozenset(draw(st.sets(entries, max_size=2))) & settled
    lac = draw(st.integers(-1, SPAN))
    return World(hot, settled, unknown, draw(st.booleans()), lac, beside, sizes, nameless)


@st.composite
def rows(draw: st.DrawFn) -> FilteredRange:
    """A request's row of the classes that are cut and that are not."""
    first = draw(entries)
    last = draw(st.integers(first, SPAN + 3))
    service = draw(st.sampled_from([ServiceClass.CATCH_UP_READ, ServiceClass.RECOVERY]))
    return FilteredRange(
        ReadRange(
            LEDGER, EntryId(first), EntryId(last), draw(st.integers(0, 60)), service=service,
            headers_only=draw(st.booleans()),
        ),
        bound=EntryId(draw(st.integers(-1, SPAN))),
        read_filter=draw(st.none() | filters),
        own=draw(st.none() | numbers),
        is_digest=draw(st.booleans()),
    )  # fmt: skip


rooms = st.builds(
    AnswerRoom,
    entry_count=st.integers(1, 12),
    run_count=st.integers(0, 4),
    range_count=st.integers(0, 4),
    body_bytes=st.integers(0, 80),
    is_body_taken=st.booleans(),
)


def state_of(world: World) -> LedgerState:
    ledger = LedgerState()
    for number in sorted(world.settled | world.hot | world.unknown):
        ledger.store(EntryId(number), identity_of(number))
    ledger.settle(sorted(world.settled))
    for number in world.unknown:
        ledger.lose(EntryId(number))
    ledger.lac = EntryId(world.lac)
    ledger.is_doubtful = world.is_doubtful
    ledger.validate()
    return ledger


def identity_of(number: int) -> int:
    return 1_000 + number


def wish_of(row: FilteredRange) -> Wish:
    wanted = row.wanted
    return Wish(
        row.read_filter, row.own, wanted.bytes_max, wanted.headers_only, row.is_digest
    )  # fmt: skip


def list_met(world: World, plan: RangePlan) -> Iterator[Met]:
    """What storage would say of the entries of a plan."""
    for entry, identity in plan.hot.rows():
        yield Met(EntryId(entry), identity, world.sizes[entry], world.envelopes.get(entry))
    for first, last in plan.settled:
        for entry in range(first, last + 1):
            if entry in world.nameless:
                yield Met(EntryId(entry), None, 0, None)
            else:
                envelope = world.envelopes.get(entry)
                yield Met(EntryId(entry), identity_of(entry), world.sizes[entry], envelope)


def ask(world: World, row: FilteredRange, room: AnswerRoom) -> tuple[RangePlan, Choice[Envelope]]:
    plan = plan_range(
        row, state_of(world), is_doubtful=False, is_sealed=False, met_count_max=room.entry_count
    )
    return plan, choose(plan, list_met(world, plan), wish_of(row), room)


def spread(ranges: Sequence[tuple[int, int]]) -> frozenset[int]:
    return frozenset(number for first, last in ranges for number in range(first, last + 1))


class Model:
    """Says of each entry in turn what the page says of it, until a bound is met."""

    def __init__(self, world: World, row: FilteredRange, room: AnswerRoom) -> None:
        self.world = world
        self.row = row
        self.room = room
        self.sent: list[int] = []
        self.unvouched: list[int] = []
        self.met: list[int] = []
        self.run_count = 0

    def tell(self) -> Told:
        first, last = self.row.wanted.first, self.row.wanted.last
        shown = max(self.world.lac, self.row.bound) if self.row.is_cut else last
        if shown < first:
            return Told(BookieStatus.NOT_RELEASED, first, [], frozenset())
        for number in range(first, min(last, shown) + 1):
            if not self._look(number):
                return Told(OK, number, self.sent, frozenset(self.unvouched))
        return Told(OK, min(last, shown) + 1, self.sent, frozenset(self.unvouched))

    def _look(self, number: int) -> bool:
        world = self.world
        if number not in world.here:
            is_doubted = world.is_doubtful or number in world.unknown
            return not is_doubted or self._doubt(number)
        if self.met and (number in world.hot) != (self.met[-1] in world.hot):
            return False
        if len(self.met) == self.room.entry_count:
            return False
        if number in world.nameless:
            envelope, is_met = None, self._doubt(number)
        else:
            envelope = world.envelopes.get(number)
            is_met = self._begin_run(envelope) and self._send(number, envelope)
        self.met += [number] * is_met
        return is_met

    def _begin_run(self, envelope: Envelope | None) -> bool:
        before = None
        if self.met and self.met[-1] not in self.world.nameless:
            before = self.world.envelopes.get(self.met[-1])
        self.run_count += envelope is not None and envelope != before
        return self.run_count <= self.room.run_count

    def _doubt(self, number: int) -> bool:
        if number - 1 not in self.unvouched:
            starts = [one for one in self.unvouched if one - 1 not in self.unvouched]
            if len(starts) == self.room.range_count:
                return False
        self.unvouched.append(number)
        return True

    def _send(self, number: int, envelope: Envelope | None) -> bool:
        row = self.row
        if not has_to_send(row.read_filter, envelope, row.own):
            return True
        sent_bytes = sum(self.world.sizes[one] for one in self.sent)
        size = self.world.sizes[number]
        if not row.is_digest:
            is_over = not row.wanted.headers_only and sent_bytes + size > row.wanted.bytes_max
            if self.sent and is_over:
                return False
            is_taken = self.room.is_body_taken or self.sent
            if is_taken and sent_bytes + size > self.room.body_bytes:
                return False
        self.sent.append(number)
        return True


@settings(max_examples=400)
@given(worlds(), rows(), rooms)
def test_v8_v9_v10_an_answer_says_of_each_entry_what_the_page_says(
    world: World, row: FilteredRange, room: AnswerRoom
) -> None:
    expected = Model(world, row, AnswerRoom(**vars(room))).tell()
    plan, choice = ask(world, row, room)
    told = [met.entry_id for met in choice.sent]
    found = Told(plan.status, choice.next, told, spread(choice.unvouched))
    assert found == expected
    assert all(met.identity == identity_of(met.entry_id) for met in choice.sent)


@given(worlds(), rows(), rooms)
def test_what_was_looked_at_is_told_or_absent_or_anothers_to_send(
    world: World, row: FilteredRange, room: AnswerRoom
) -> None:
    """The page's two sentences on absence, without a model of how the bookie gets there."""
    plan, choice = ask(world, row, room)
    looked = set(range(row.wanted.first, choice.next))
    sent, unvouched = {met.entry_id for met in choice.sent}, spread(choice.unvouched)
    assert sent | unvouched <= looked and not sent & unvouched
    assert looked & world.unknown <= unvouched
    if world.is_doubtful:
        assert looked - world.here <= unvouched
    passed = (looked & world.here) - sent - unvouched
    assert row.read_filter is not None or not passed
    if row.is_cut:
        assert choice.next <= max(world.lac, row.bound, row.wanted.first - 1) + 1
    assert plan.status is OK or not looked


@given(worlds(), rows(), rooms)
def test_an_answer_goes_on_where_the_one_before_it_ended(
    world: World, row: FilteredRange, room: AnswerRoom
) -> None:
    """Asked from `next` on each time, with fresh room, a range is told whole, each entry once."""
    row = row._replace(wanted=row.wanted._replace(service=ServiceClass.RECOVERY))
    fresh = AnswerRoom(max(1, room.entry_count), max(1, room.run_count), max(1, room.range_count))
    first, end = row.wanted.first, row.wanted.last + 1
    sent: list[int] = []
    unvouched: set[int] = set()
    while True:
        _, choice = ask(world, row, AnswerRoom(**vars(fresh)))
        assert choice.next > row.wanted.first, "fresh room is room for one entry"
        sent += [met.entry_id for met in choice.sent]
        unvouched |= spread(choice.unvouched)
        if choice.next == end:
            break
        row = row._replace(wanted=row.wanted._replace(first=EntryId(choice.next)))
    asked = set(range(first, end))
    doubts = world.unknown | world.nameless | (asked if world.is_doubtful else set())
    assert unvouched == asked & doubts - (world.here - world.nameless)
    mine = [
        number
        for number in sorted(asked & world.here - world.nameless)
        if has_to_send(row.read_filter, world.envelopes.get(number), row.own)
    ]
    assert sent == mine


@given(worlds(), rows(), rooms, st.sets(entries))
@example(
    World(frozenset(range(9)), frozenset(), frozenset(), False, 9, {}, {}, frozenset())._replace(
        sizes=dict.fromkeys(range(SPAN), 1)
    ),
    FilteredRange(ReadRange(LEDGER, EntryId(0), EntryId(8), 99)),
    AnswerRoom(),
    {1, 2, 5},
)
def test_v10_a_body_that_breaks_is_unvouched(
    world: World, row: FilteredRange, room: AnswerRoom, bad: set[int]
) -> None:
    _, choice = ask(world, row, room)
    broken = [met.entry_id for met in choice.sent if met.entry_id in bad]
    ended = finish(choice, broken, None)
    assert ended.next == choice.next
    assert [m for m in choice.sent if m.entry_id not in bad] == list(ended.sent)
    assert spread(ended.unvouched) == spread(choice.unvouched) | set(broken)
    for end in broken:
        cut = finish(choice, [entry for entry in broken if entry < end], end)
        assert cut.next == end, "what was not read was not looked at"
        assert list(cut.sent) == [met for met in ended.sent if met.entry_id < end]
        assert spread(cut.unvouched) == {n for n in spread(ended.unvouched) if n < end}


def test_an_answer_ends_before_what_it_has_no_room_to_tell() -> None:
    count = FILTERED_RANGE_COUNT_MAX
    sent = [Met(EntryId(n), n, 1, None) for n in range(2 * count + 3)]
    choice: Choice[Envelope] = Choice(2 * count + 3, sent, ())
    ended = finish(choice, [EntryId(n) for n in range(0, 2 * count + 2, 2)], None)
    assert ended.next == 2 * count, "the first of the range that is one too many"
    assert len(ended.unvouched) == count and ended.unvouched[-1] == (2 * count - 2, 2 * count - 2)
    assert [met.entry_id for met in ended.sent] == list(range(1, 2 * count, 2))


def test_a_plan_ends_where_it_has_as_many_unreadable_ranges_as_one_answer_tells() -> None:
    ledger = LedgerState()
    count = FILTERED_RANGE_COUNT_MAX + 2
    for number in range(2 * count):
        ledger.store(EntryId(number), number)
    for number in range(0, 2 * count, 2):
        ledger.lose(EntryId(number))
    row = FilteredRange(
        ReadRange(LEDGER, EntryId(0), EntryId(2 * count), 0, service=ServiceClass.RECOVERY),
        is_digest=True,
    )
    plan = plan_range(row, ledger, is_doubtful=False, is_sealed=True, met_count_max=1 << 16)
    known = [Met(EntryId(n), crc, 1, None) for n, crc in plan.hot.rows()]
    choice: Choice[Envelope] = choose(plan, known, wish_of(row), AnswerRoom())
    assert len(choice.unvouched) == FILTERED_RANGE_COUNT_MAX
    assert choice.next == 2 * FILTERED_RANGE_COUNT_MAX
    assert choice.sent[-1].entry_id == choice.next - 1


def test_damage_that_one_range_may_tell_is_still_no_absence() -> None:
    """Between unreadable entries lie such as no index can name: the ranges of both become one."""
    ledger = LedgerState()
    count = FILTERED_RANGE_COUNT_MAX + 9
    for number in range(2 * count):
        ledger.store(EntryId(number), number)
    ledger.settle(range(2 * count))
    for number in range(0, 2 * count, 2):
        ledger.lose(EntryId(number))
    row = FilteredRange(
        ReadRange(LEDGER, EntryId(0), EntryId(2 * count - 1), 0, service=ServiceClass.REPAIR)
    )
    plan = plan_range(row, ledger, is_doubtful=False, is_sealed=False, met_count_max=1 << 16)
    nameless = [Met(EntryId(n), None, 0, None) for n in range(1, 2 * count, 2)]
    room = AnswerRoom(nameless_count=2 * count)
    choice: Choice[Envelope] = choose(plan, nameless, wish_of(row), room)
    assert choice.next > FILTERED_RANGE_COUNT_MAX
    assert choice.unvouched == ((0, choice.next - 1),)


def test_entries_that_nothing_can_name_are_met_some_at_a_time() -> None:
    ledger = LedgerState()
    for number in range(2_000):
        ledger.store(EntryId(number), number)
    ledger.settle(range(2_000))
    row = FilteredRange(
        ReadRange(LEDGER, EntryId(0), EntryId(1_999), 0, service=ServiceClass.REPAIR)
    )
    plan = plan_range(row, ledger, is_doubtful=False, is_sealed=False, met_count_max=1 << 16)
    nameless = [Met(EntryId(n), None, 0, None) for n in range(2_000)]
    choice: Choice[Envelope] = choose(plan, nameless, wish_of(row), AnswerRoom())
    assert (choice.next, choice.unvouched) == (1_024, ((0, 1_023),))


def test_a_ledger_that_nothing_is_known_of_is_absent_or_all_in_doubt() -> None:
    row = FilteredRange(ReadRange(LEDGER, EntryId(3), EntryId(9), 0, service=ServiceClass.RECOVERY))
    for is_doubtful in (False, True):
        plan = plan_range(
            row, LedgerState(), is_doubtful=is_doubtful, is_sealed=False, met_count_max=9
        )
        choice: Choice[Envelope] = choose(plan, list[Met](), wish_of(row), AnswerRoom())
        assert (plan.status, plan.lac, choice.next) == (OK, NOTHING, 10)
        assert choice.unvouched == (((3, 9),) if is_doubtful else ())
