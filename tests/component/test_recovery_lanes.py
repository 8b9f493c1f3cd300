"""What recovery asks bookies, what it believes of their answers, and adds whose bookie is gone.

The lanes and the fake client of `test_bookie_lanes`, on the real wire format.
Source: R14.
"""

from collections.abc import Sized

from duramen.core.segment import Totals
from duramen.core.sequencer.effects import SendRecoveryRead
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, LedgerId, LogId, ledger_of
from duramen.runtime.http_client import UnreachableError
from duramen.units import MIB
from duramen.wire import bookie_calls as calls
from duramen.wire.entry import encode_entry
from tests.component.bookie_lanes_world import LEDGER, MEMBER, OK, Call, World, run
from tests.waiting import wait_for

ANOTHER_LOG = ledger_of(LogId(10), Epoch(1))


def answer_with_entry_of(ledger_id: LedgerId) -> bytes:
    entry = encode_entry(
        ledger_id=ledger_id, entry_id=EntryId(4), before=Totals(), batches=[b"x" * 9],
        record_count=1, after=Totals(1, 9),
    )  # fmt: skip
    found = calls.ReadAnswer(OK, NOTHING, EntryId(4), True, [(EntryId(4), entry)])
    return calls.pack_read_answers([found])


async def wait_count(found: Sized, count: int) -> None:
    """Until so many have come."""
    await wait_for(lambda: len(found) >= count)


def test_recovery_reads_seal_and_believe_the_log_that_was_asked_for() -> None:
    async def scenario(world: World) -> None:
        for ledger_id in (LEDGER, ANOTHER_LOG):

            async def answer(_: Call, ledger_id: LedgerId = ledger_id) -> bytes:
                return answer_with_entry_of(ledger_id)

            world.client.decide = answer
            world.lanes.read(SendRecoveryRead(MEMBER, LEDGER, EntryId(4)), world.sink)
            await wait_count(world.sink.others, len(world.client.calls) + 1)
        assert world.sink.others == [OK, BookieStatus.UNKNOWN]
        for call in world.client.calls:
            ((wanted,),) = calls.parse_reads(call.body)[1:]
            assert (wanted.ledger_id, wanted.first, wanted.seal_epoch) == (LEDGER, 4, 1)

    run(scenario)


def test_every_add_of_a_bookie_that_is_gone_is_failed_once() -> None:
    async def scenario(world: World) -> None:
        async def fail(_: Call) -> bytes:
            raise UnreachableError("nobody listens")

        world.client.decide = fail
        world.add(*range(20), size=MIB)
        await wait_for(lambda: len(world.sink.adds) >= 20)
        assert sorted(entry for entry, _ in world.sink.adds) == list(range(20))
        (lane,) = world.lanes.statistics()["by_bookie"].values()
        assert (lane["waiting_count"], lane["waiting_logs"]) == (0, 0)

    run(scenario)


def test_an_answer_with_too_few_rows_fails_its_frame_and_no_other() -> None:
    async def scenario(world: World) -> None:
        async def answer_short(_: Call) -> bytes:
            return calls.pack_statuses([OK])

        world.client.decide = answer_short
        for first in (0, 2, 4, 6):
            world.add(first, first + 1)
            await wait_count(world.sink.adds, first + 2)
        assert {status for _, status in world.sink.adds} == {BookieStatus.TIMEOUT}

    run(scenario)
