"""Classes of service: what each may hold, who is refused, whose read is next; the decisions alone.

Every test drives `AdmissionControl` by hand; random runs check its invariants. Not here: requests,
threads and refusals on the wire (`test_data_plane`), real sockets and disks
(`test_bookie_overload`).
"""

from __future__ import annotations

import random

import pytest

from duramen.ids import NOTHING, EntryId, Epoch, LogId, ledger_of
from duramen.limits import JOURNAL_QUEUE_BYTES_MAX, READ_QUEUE_WAIT_MAX_US
from duramen.units import MIB
from duramen.wire.bookie_calls import Add, ReadRange, ServiceClass
from duramen.wire.frame import FRAME_BYTES_HARD_MAX
from duramen_bookie.admission import (
    CLASS_LIMITS,
    QUEUE_BYTES_MAX,
    AdmissionControl,
    OverloadError,
    Permit,
    class_of_add,
    class_of_reads,
)
from tests.component.request_classes import (
    ALICE,
    APPEND,
    BOB,
    CATCH_UP,
    RECOVERY,
    REPAIR,
    SMALL,
    TAIL,
)

QUEUE_STEP_US = READ_QUEUE_WAIT_MAX_US // 9


LEDGER = ledger_of(LogId(9), Epoch(1))


def small() -> AdmissionControl[str]:
    return AdmissionControl(SMALL)


def fill(admission: AdmissionControl[str], service: ServiceClass) -> list[Permit]:
    """Requests of ever other clients, until the class is full."""
    count = SMALL[service].request_count_max
    permits = [admission.take(service, f"client {number}") for number in range(count)]
    with pytest.raises(OverloadError):
        admission.take(service, "one more")
    return permits


@pytest.mark.parametrize("full", ServiceClass)
def test_a_full_class_refuses_its_own_and_nobody_elses(full: ServiceClass) -> None:
    admission = small()
    permits = fill(admission, full)
    assert len(permits) == SMALL[full].request_count_max
    for service in ServiceClass:
        if service is not full:
            permits.append(admission.take(service, ALICE))
    admission.validate(permits)
    admission.release(permits[0])
    assert admission.take(full, ALICE).service is full


def test_a_refusal_says_what_is_full_and_when_to_ask_again() -> None:
    admission = small()
    permits = fill(admission, CATCH_UP)
    with pytest.raises(OverloadError, match=r"^catch up read: 6 requests .* in 250 ms$") as caught:
        admission.take(CATCH_UP, ALICE)
    assert caught.value.retry_after_ms == 250
    assert admission.statistics()["catch_up_read"]["refused"] == 2
    admission.validate(permits)


def test_bytes_that_wait_for_the_journal_are_bounded_by_class() -> None:
    admission = small()
    held = [admission.take(APPEND, f"client {n}", add_bytes=400) for n in range(2)]
    with pytest.raises(OverloadError, match="800 bytes wait for the journal"):
        admission.take(APPEND, BOB, add_bytes=400)
    held.append(admission.take(RECOVERY, BOB, add_bytes=400))
    admission.validate(held)
    admission.release(held.pop(0))
    assert admission.take(APPEND, BOB, add_bytes=400).add_bytes == 400


def test_a_frame_larger_than_a_bound_gets_in_alone() -> None:
    admission = small()
    large = admission.take(APPEND, ALICE, add_bytes=5_000)
    with pytest.raises(OverloadError):
        admission.take(APPEND, BOB, add_bytes=1)
    admission.release(large)
    assert admission.take(APPEND, BOB, add_bytes=5_000)


def test_one_client_holds_half_of_a_class_at_most() -> None:
    admission = small()
    permits = [admission.take(CATCH_UP, ALICE) for _ in range(3)]
    with pytest.raises(OverloadError, match="3 requests of this client"):
        admission.take(CATCH_UP, ALICE)
    permits += [admission.take(CATCH_UP, BOB) for _ in range(3)]
    permits.append(admission.take(APPEND, ALICE, add_bytes=300))
    with pytest.raises(OverloadError, match="300 bytes of this client"):
        admission.take(APPEND, ALICE, add_bytes=300)
    permits.append(admission.take(APPEND, BOB, add_bytes=300))
    admission.validate(permits)


def test_who_holds_nothing_is_not_remembered() -> None:
    admission = small()
    for number in range(1_000):
        admission.release(admission.take(APPEND, f"client {number}", add_bytes=10))
    assert admission.statistics()["append"]["clients"] == 0
    admission.validate([])


def test_a_long_poll_holds_nothing_while_it_waits() -> None:
    admission = small()
    polls = [admission.take_poll(TAIL) for _ in range(1_000)]
    assert admission.statistics() == small().statistics()
    permits = fill(admission, TAIL)
    admission.hold_answer(polls[0], 100)
    admission.validate([*polls, *permits])
    admission.release(polls[0])
    assert admission.statistics()["tail_read"]["answer_bytes"] == 0


def test_bytes_of_answers_that_are_read_at_once_are_bounded() -> None:
    admission = small()
    permits = [admission.take(CATCH_UP, f"client {n}") for n in range(4)]
    admission.hold_answer(permits[0], 5_000)  # larger than the bound: alone
    with pytest.raises(OverloadError, match="5000 bytes of answers"):
        admission.hold_answer(permits[1], 1)
    admission.hold_answer(permits[2], 0)
    admission.validate(permits)
    admission.release(permits.pop(0))
    admission.hold_answer(permits[0], 1_000)
    admission.validate(permits)


def push(
    admission: AdmissionControl[str],
    permit: Permit,
    job: str,
    *,
    queue_bytes: int = 1,
    answer_bytes: int = 1,
    now_us: int = 0,
) -> None:
    admission.queue_read(
        permit, job, queue_bytes=queue_bytes, answer_bytes=answer_bytes, now_us=now_us
    )


def queue(
    admission: AdmissionControl[str], service: ServiceClass, name: str, now_us: int = 0
) -> Permit:
    permit = admission.take(service, name)
    push(admission, permit, name, now_us=now_us)
    return permit


def names(admission: AdmissionControl[str], now_us: int = 0) -> list[str]:
    return [ready.job for ready in admission.take_ready(now_us)]


def test_each_class_reads_in_its_own_threads_first_come_first_served() -> None:
    admission = small()
    flood = [queue(admission, CATCH_UP, f"c{n}") for n in range(6)]
    assert names(admission) == ["c0", "c1"]
    others = [queue(admission, service, service.name) for service in (TAIL, RECOVERY, REPAIR)]
    assert names(admission) == ["TAIL_READ", "RECOVERY", "REPAIR"]
    assert admission.thread_count == 5
    admission.on_read_done(flood[1], 1)
    assert names(admission) == ["c2"]
    admission.validate([*flood, *others])


def test_a_read_that_waited_too_long_is_late_and_holds_no_thread() -> None:
    admission = small()
    flood = [queue(admission, RECOVERY, f"r{n}", now_us=n) for n in range(4)]
    assert names(admission, 3) == ["r0"]
    admission.on_read_done(flood[0], 1)
    ready = admission.take_ready(READ_QUEUE_WAIT_MAX_US + 2)
    assert [(r.job, r.is_late) for r in ready] == [("r1", True), ("r2", False)]
    assert ready[1].waited_us == READ_QUEUE_WAIT_MAX_US
    admission.validate(flood)


def test_a_read_that_nobody_waits_for_any_more_is_dropped() -> None:
    admission = small()
    flood = [queue(admission, RECOVERY, f"r{n}") for n in range(3)]
    assert names(admission) == ["r0"]
    admission.release(flood[1])
    admission.on_read_done(flood[0], 1)
    assert names(admission) == ["r2"]
    admission.validate(flood)


def test_the_bytes_of_a_request_given_up_count_until_its_thread_is_done() -> None:
    admission = small()
    permit = admission.take(REPAIR, ALICE)
    push(admission, permit, "r", answer_bytes=700)
    assert names(admission) == ["r"]
    admission.release(permit)
    held = admission.statistics()["repair"]
    assert (held["requests"], held["answer_bytes"], held["reads_running"]) == (0, 700, 1)
    admission.on_read_done(permit, 700)
    assert admission.statistics()["repair"]["answer_bytes"] == 0


def test_woken_polls_cannot_make_the_queue_of_reads_endless() -> None:
    admission = small()
    for _ in range(4):
        push(admission, admission.take_poll(TAIL), "poll")
    with pytest.raises(OverloadError, match="4 reads wait"):
        push(admission, admission.take_poll(TAIL), "poll")


def test_what_waits_for_a_thread_is_bounded_in_bytes_too() -> None:
    admission = small()
    permits = [admission.take(CATCH_UP, f"client {n}") for n in range(3)]
    push(admission, permits[0], "large", queue_bytes=2 * QUEUE_BYTES_MAX)
    with pytest.raises(OverloadError, match="1 reads wait"):
        push(admission, permits[1], "small")
    assert names(admission) == ["large"]
    push(admission, permits[1], "small", queue_bytes=QUEUE_BYTES_MAX)
    admission.take_ready(0)
    admission.validate(permits)


def test_a_read_waits_until_its_class_has_room_for_what_it_brings() -> None:
    admission = small()
    permits = [admission.take(CATCH_UP, f"client {n}") for n in range(4)]
    for number, answer_bytes in enumerate((600, 600, 300, 2_000)):
        push(admission, permits[number], f"r{number}", answer_bytes=answer_bytes)
    assert names(admission) == ["r0"], "in order, although the third would fit"
    admission.on_read_done(permits[0], 100)  # it was less than was thought
    assert names(admission) == ["r1", "r2"]
    admission.on_read_done(permits[1], 600)
    admission.on_read_done(permits[2], 300)
    assert names(admission) == []
    for number in range(3):
        admission.validate(permits[number:])
        assert names(admission) == []
        admission.release(permits[number])
    assert names(admission) == ["r3"], "what is larger than the bound is read alone"


def queue_at_random(
    admission: AdmissionControl[Permit], permit: Permit, rng: random.Random, now_us: int
) -> None:
    if rng.random() < 0.2:
        admission.hold_answer(permit, rng.randrange(1, 600))
        return
    admission.queue_read(
        permit, permit, queue_bytes=rng.choice([10, QUEUE_BYTES_MAX // 2]),
        answer_bytes=rng.randrange(1, 600), now_us=now_us,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_class_holds_what_its_permits_hold(seed: int) -> None:
    rng = random.Random(seed)
    admission: AdmissionControl[Permit] = AdmissionControl(SMALL)
    permits: list[Permit] = []
    used: list[Permit] = []
    for now_us in range(500):
        service = rng.choice(list(ServiceClass))
        live = [p for p in permits if not p.is_released]
        try:
            match rng.randrange(5):
                case 0:
                    add_bytes = rng.choice([0, 100, 2_000]) if service is not TAIL else 0
                    permits.append(
                        admission.take(service, rng.choice([ALICE, BOB]), add_bytes=add_bytes)
                    )
                case 1:
                    permits.append(admission.take_poll(service))
                case 2 if live:
                    permit = rng.choice(live)
                    if permit not in used and permit.service is not APPEND:
                        used.append(permit)
                        queue_at_random(admission, permit, rng, now_us * QUEUE_STEP_US)
                case 3 if live:
                    admission.release(rng.choice(live))
                case _:
                    for permit in [p for p in permits if p.is_reading and rng.random() < 0.5]:
                        admission.on_read_done(permit, rng.randrange(600))
        except OverloadError:
            pass
        admission.take_ready(now_us * QUEUE_STEP_US)
        admission.validate(permits)
        permits = [p for p in permits if p.is_reading or not p.is_released]
    for permit in permits:
        if permit.is_reading:
            admission.on_read_done(permit, 1)
        if not permit.is_released:
            admission.release(permit)
    assert not admission.take_ready(0), "nobody waits for what was given up"
    admission.validate([])


def test_the_bounds_of_a_bookie_fit_together() -> None:
    limits = CLASS_LIMITS
    assert sum(one.add_bytes_max for one in limits.values()) <= JOURNAL_QUEUE_BYTES_MAX
    for service in (APPEND, RECOVERY, REPAIR):
        assert limits[service].add_bytes_max > FRAME_BYTES_HARD_MAX
    for service in (TAIL, CATCH_UP, RECOVERY, REPAIR):
        assert limits[service].thread_count > 0 and limits[service].answer_bytes_max > 16 * MIB


def test_the_class_of_an_add_follows_its_recovery_flag() -> None:
    owner = Add(LEDGER, EntryId(0), NOTHING, b"")
    copy = owner._replace(is_recovery=True)
    assert class_of_add(owner) is class_of_add(owner._replace(service=RECOVERY)) is APPEND
    assert class_of_add(copy) is class_of_add(copy._replace(service=TAIL)) is RECOVERY
    assert class_of_add(copy._replace(service=REPAIR)) is REPAIR


def test_the_class_of_a_read_is_the_least_favoured_of_its_rows() -> None:
    def classify(*services: ServiceClass) -> ServiceClass:
        one = ReadRange(LEDGER, EntryId(0), EntryId(0), 1)
        return class_of_reads([one._replace(service=service) for service in services])

    assert [classify(service) for service in ServiceClass] == [
        CATCH_UP,
        TAIL,
        CATCH_UP,
        RECOVERY,
        REPAIR,
    ]
    assert classify(RECOVERY, TAIL) is TAIL
    assert classify(RECOVERY, CATCH_UP, TAIL) is CATCH_UP
    assert classify(TAIL, REPAIR, RECOVERY) is REPAIR
    assert classify() is CATCH_UP
