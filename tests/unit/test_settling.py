"""Which batches of a session's group are sent again: every mix of fates keeps the order.

A model of the log judges: batches go in as the group says, and what is uncertain may have gone in
or not. Source: docs/protocol/rest.md "Append sessions".
"""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.errors import DuramenError
from duramen.ids import Dlsn, EntryId, Epoch, SequencerId
from duramen.wire.record_batch import BatchProducer
from duramen.wire.sequencer_calls import AppendedBatch, LogMark, Redirect
from duramen_writeproxy.intake.settling import Group, Result

MARK = LogMark(Dlsn(Epoch(1), EntryId(1), 0), 1, 5)
OK = AppendedBatch(MARK, 1, MARK)
UNSETTLED = DuramenError("log_unavailable", "given up")


def refusal(code: str) -> DuramenError:
    return DuramenError(code, "no")


def make_group(producers: list[BatchProducer | None]) -> Group:
    return Group(producers, lambda error: error.code == "log_unavailable")


def test_what_went_in_is_settled_at_once() -> None:
    group = make_group([None, None])
    assert group.settle([OK, OK]) is None
    assert group.outcomes(UNSETTLED) == [OK, OK]


def test_an_uncertain_batch_stops_everything_behind_it() -> None:
    group = make_group([None] * 3)
    doubt = refusal("append_uncertain")
    assert group.settle([OK, doubt, Redirect(SequencerId("s"), "u")]) is None
    assert group.outcomes(UNSETTLED) == [OK, doubt, UNSETTLED]


def test_a_refused_repetition_of_an_uncertain_batch_stays_uncertain() -> None:
    group = make_group([BatchProducer("p", 0, 0)])
    assert group.settle([refusal("append_uncertain")]) is not None
    assert group.settle([refusal("producer_unknown")]) is None
    [outcome] = group.outcomes(UNSETTLED)
    assert isinstance(outcome, DuramenError) and outcome.code == "append_uncertain"


FATES = ("ok", "refused", "later", "redirect", "in doubt, stored", "in doubt, not stored")


@settings(max_examples=400)
@given(
    st.lists(st.sampled_from([None, "p", "q"]), min_size=1, max_size=4),
    st.lists(st.lists(st.sampled_from(FATES), min_size=4, max_size=4), min_size=1, max_size=4),
)
def test_the_log_has_the_order_of_the_session(
    names: list[str | None], tries: list[list[str]]
) -> None:
    counts = {name: itertools.count() for name in ("p", "q")}
    producers = [None if n is None else BatchProducer(n, 0, next(counts[n])) for n in names]
    group = make_group(producers)
    log: list[int] = []
    for fates in tries:
        sent = list(group.open)
        if not sent:
            break
        results = [
            _play(fate, index, producers, log) for fate, index in zip(fates, sent, strict=False)
        ]
        group.settle(results)
        assert set(group.open) <= set(sent)
    assert log == sorted(set(log)), f"{producers} {tries}"
    _check_outcomes(group, producers, log)


def _play(fate: str, index: int, producers: list[BatchProducer | None], log: list[int]) -> Result:
    """What a log answers that knows producers: repetitions, and no gaps."""
    producer = producers[index]
    if producer is not None:
        if index in log:
            return OK if fate != "in doubt, stored" else refusal("append_uncertain")
        mates = [i for i, p in enumerate(producers) if p is not None and p[:2] == producer[:2]]
        if any(i < index and i not in log for i in mates):
            return refusal("producer_gap")
    match fate:
        case "ok" | "in doubt, stored":
            log.append(index)
            return OK if fate == "ok" else refusal("append_uncertain")
        case "refused":
            return refusal("condition_failed")
        case "later":
            return refusal("log_unavailable")
        case "redirect":
            return Redirect(SequencerId("s"), "u")
        case _:
            return refusal("append_uncertain")


def _check_outcomes(group: Group, producers: list[BatchProducer | None], log: list[int]) -> None:
    """Nothing is told that is not so: appended is in the log, refused is not."""
    for index, outcome in enumerate(group.outcomes(UNSETTLED)):
        if isinstance(outcome, DuramenError):
            assert outcome.uncertain or index not in log, (index, outcome, producers)
        else:
            assert index in log
