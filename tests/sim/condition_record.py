"""What appends with conditions, tokens, producers of one log experienced: Q1, K1, U1, O3, R29.

Part of `checkers`, beside `log_record`, which judges them as appends like all others. An append
that was accepted met its condition; a refusal was right at a moment between its invocation and its
answer (linearizability). The log's order being one, it is enough to hold each refusal against the
final log at the place that it names, and to take it for an event of that order, after all that was
acknowledged before it was asked for and before all that is asked for later. Tokens are in force
from their control record on.

Invariants that are judged here, beside those of docs/testing.md "Invariants":
  Q1  a condition or a producer's sequence is refused only when it does not hold, and holds where
      the append is accepted.
  K1  an append under a fencing token lies where that token is in force; a token that was set stays.
  R29 what has a demand lies in an `ordered` epoch; none acknowledges out of order above an epoch
      with a producer or a token; and no mode is refused that nobody ever wished for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from duramen.core.sequencer.exactly_once.stamps import Stamp
from duramen.ids import Dlsn, LogId
from tests.sim.log_record import key_of
from tests.sim.segment_record import Record, Tally


class Demand(NamedTuple):
    """What an append demands of its log."""

    match_seq_num: int | None = None
    token: str | None = None
    stamp: Stamp | None = None


class Refusal(NamedTuple):
    """What a refusal says of the log: its tail then, and the sequence of a producer."""

    code: str
    dlsn: Dlsn
    seq_num: int
    producer_seq: int | None = None


@dataclass(slots=True, eq=False)
class _Asked:
    demand: Demand
    bodies: tuple[bytes, ...]
    token_floor: int
    """Where the newest token lies that was set before this was asked for."""
    producer_floor: tuple[int, int] = (-1, -1)
    is_stored: bool = False


@dataclass(slots=True, eq=False)
class _Setting:
    token: str
    expected: str | None
    floor: int
    is_open: bool = True


class _Refused(NamedTuple):
    refusal: Refusal
    token: str | None


class ConditionRecord:
    """The demands on one log."""

    def __init__(self, log_id: LogId, tally: Tally) -> None:
        self.log_id = log_id
        self._tally = tally
        self._asked: dict[tuple[int, int], _Asked] = {}
        self._by_body: dict[bytes, _Asked] = {}
        self._refused: list[_Refused] = []
        self._settings: dict[tuple[int, int], _Setting] = {}
        self._tokens: dict[int, str] = {}
        """By the key of their control record: acknowledged, or seen by a reader."""
        self._set: list[int] = []
        self._token_floor = -1
        self._producers: dict[str, tuple[int, int]] = {}
        """Epoch and sequence of the last batch that was acknowledged."""
        self._newest: dict[str, int] = {}
        """The newest epoch that was begun."""
        self._unordered: set[int] = set()
        """Epochs that acknowledge out of order."""
        self._was_wished = False
        """Somebody wished for such epochs."""
        self._state_epoch: int | None = None
        """The lowest epoch of the log with an acknowledged batch of a producer, or a token."""

    # --- modes -----------------------------------------------------------------------------------

    def on_wish(self, ack_mode: str) -> None:
        """The log's configuration asks for this mode."""
        self._was_wished = self._was_wished or ack_mode != "ordered"

    def on_opened(self, epoch: int, ack_mode: str) -> None:
        """An epoch is open, and acknowledges so."""
        if ack_mode == "ordered":
            return
        self._unordered.add(epoch)
        self._check_state(epoch, "is opened")

    def on_mode_refused(self, code: str) -> None:
        """Something was refused since it needs order, which the log has not, or soon not any more.

        A zombie may say so of what its log was: nobody who is refused here relies on it.
        """
        self._check("R29", self._was_wished, code, "where all was ordered ever")

    def _note_state(self, epoch: int, what: object) -> None:
        """The next owner has to know of something that lies in this epoch."""
        known = self._state_epoch
        self._state_epoch = epoch if known is None else min(known, epoch)
        self._check_state(max(self._unordered, default=-1), what)

    def _check_state(self, highest: int, what: object) -> None:
        """No epoch out of order lies above one whose state has to be read back: nobody would."""
        is_below = self._state_epoch is None or highest < self._state_epoch
        told = "epoch", highest, "is out of order above the state of", self._state_epoch
        self._check("R29", is_below, *told, what)

    # --- appends ---------------------------------------------------------------------------------

    def on_demand(
        self, client: int, append_id: int, demand: Demand, bodies: tuple[bytes, ...]
    ) -> None:
        """An append that was invoked demands something."""
        asked = _Asked(demand, bodies, self._token_floor)
        if demand.stamp is not None:
            name, epoch, _ = demand.stamp
            self._newest[name] = max(epoch, self._newest.get(name, 0))
        self._asked[client, append_id] = self._by_body[bodies[0]] = asked

    def on_attempt(self, client: int, append_id: int) -> None:
        """A producer's batch is sent once more: what was acknowledged before bounds its refusal."""
        asked = self._asked[client, append_id]
        assert asked.demand.stamp is not None
        asked.producer_floor = self._producers.get(asked.demand.stamp.producer_id, (-1, -1))

    def on_accepted(self, client: int, append_id: int, dlsn: Dlsn, seq_num: int | None) -> None:
        """An append was acknowledged; without a number, while older epochs were not closed."""
        asked = self._asked.get((client, append_id))
        if asked is None:
            return
        demand = asked.demand
        self._check("Q1", seq_num is not None, "an early append was accepted for", demand)
        is_ordered = dlsn.epoch not in self._unordered
        self._check("R29", is_ordered, "out of order", dlsn, "was acknowledged for", demand)
        if demand.match_seq_num is not None:
            is_met = demand.match_seq_num == seq_num
            self._check("Q1", is_met, "seq", seq_num, "was accepted for", demand)
        if demand.token is not None:
            self._check_floor(asked.token_floor, dlsn, demand)
        if demand.stamp is not None:
            name, epoch, sequence = demand.stamp
            known = self._producers.get(name, (-1, -1))
            self._producers[name] = max(known, (epoch, sequence))
            self._note_state(dlsn.epoch, demand)

    def on_stored(self, client: int, append_id: int) -> None:
        """A producer is told that its batch is in the log, but not where."""
        self._asked[client, append_id].is_stored = True

    def on_refused(self, client: int, append_id: int, refusal: Refusal) -> None:
        """An append was refused for what it demands."""
        demand = self._asked[client, append_id].demand
        if refusal.code == "condition_failed":
            is_right = demand.match_seq_num != refusal.seq_num
            self._check("Q1", is_right, demand, "was refused:", refusal)
        self._check_floor(self._asked[client, append_id].token_floor, refusal.dlsn, demand)
        self._refused.append(_Refused(refusal, demand.token))

    def on_attempt_refused(
        self, client: int, append_id: int, code: str, expected_seq: int | None
    ) -> None:
        """A producer's batch was refused, for now."""
        asked = self._asked[client, append_id]
        assert asked.demand.stamp is not None
        epoch, sequence = asked.producer_floor
        is_right = True
        match code:
            case "producer_unknown":
                is_right = epoch < 0
            case "producer_fenced":
                is_right = self._newest[asked.demand.stamp.producer_id] > asked.demand.stamp.epoch
            case "producer_gap":
                is_next = sequence + 1 if epoch == asked.demand.stamp.epoch else 0
                is_right = expected_seq is not None and expected_seq >= is_next
        what = asked.demand.stamp, "was refused with", code, expected_seq
        self._check("Q1", is_right, *what, "after", (epoch, sequence), "was acknowledged")

    # --- tokens ----------------------------------------------------------------------------------

    def on_set_token(self, client: int, number: int, token: str, expected: str | None) -> None:
        """Somebody begins to set a token, which nobody else ever sets."""
        self._settings[client, number] = _Setting(token, expected, self._token_floor)

    def on_token_set(self, client: int, number: int, dlsn: Dlsn) -> None:
        """A token is in force from its control record on."""
        setting = self._settings[client, number]
        setting.is_open = False
        self._check_floor(setting.floor, dlsn, setting.token)
        key = key_of(dlsn)
        self._note_token(key, setting.token)
        self._note_state(dlsn.epoch, setting.token)
        self._set.append(key)
        self._token_floor = max(self._token_floor, key)

    def on_token_refused(self, client: int, number: int, refusal: Refusal) -> None:
        """A token was not set, since another one than the expected is in force."""
        setting = self._settings[client, number]
        setting.is_open = False
        self._check_floor(setting.floor, refusal.dlsn, setting.token)
        self._refused.append(_Refused(refusal, setting.expected))

    def on_token_failed(self, client: int, number: int) -> None:
        """A token was not set and never will be."""
        self._settings[client, number].is_open = False

    def on_token_read(self, dlsn: Dlsn, token: str) -> None:
        """A reader was given a token's control record."""
        self._note_token(key_of(dlsn), token)

    def _note_token(self, key: int, token: str) -> None:
        known = self._tokens.setdefault(key, token)
        self._check("K1", known == token, "token", token, "lies where", known, "lies")

    # --- the end ---------------------------------------------------------------------------------

    def finish(
        self, complete: Sequence[Record], tokens: Sequence[tuple[int, str]], head_key: int
    ) -> None:
        """Judge the final complete read.

        Args:
            tokens: the control records that it met, key and token.
            head_key: of the first entry that is left of the log.
        """
        for key in self._set:
            is_kept = key < head_key or (key, self._tokens[key]) in tokens
            self._check("K1", is_kept, "token", self._tokens[key], "is not in the log any more")
        timeline = _Timeline(self._tokens, self._first_known(tokens, head_key))
        for setting in self._settings.values():
            for key, token in tokens:
                if token == setting.token and setting.expected is not None:
                    before = timeline.before(key)
                    is_met = before is None or before == setting.expected
                    self._check("K1", is_met, setting, "was set in place of", before)
        self._check_records(complete, timeline)
        self._check_refusals(complete, timeline, head_key)
        found = {body for _, _, body in complete}
        for asked in self._asked.values():
            if asked.is_stored and not head_key:
                what = asked.demand, "was said to be stored"
                self._check("U1", asked.bodies[0] in found, *what)

    def _first_known(self, tokens: Sequence[tuple[int, str]], head_key: int) -> int:
        """From where on it is known which token is in force: some may be given up unseen.

        So may the first record of a token that was acknowledged later, at a repetition.
        """
        seen_below = {token for key, token in self._tokens.items() if key < head_key}
        seen = {*self._tokens.values()}
        is_unclear = any(
            (setting.is_open or setting.token in seen)
            and setting.token not in seen_below
            and setting.floor < head_key
            for setting in self._settings.values()
        )
        if not head_key or not is_unclear:
            return 0
        return tokens[0][0] if tokens else 1 << 128

    def _check_records(self, complete: Sequence[Record], timeline: _Timeline) -> None:
        latest: dict[str, tuple[int, int]] = {}
        for dlsn, seq_num, body in complete:
            asked = self._by_body.get(body)
            if asked is None:
                continue
            match_seq_num, token, stamp = asked.demand
            if match_seq_num is not None:
                what = asked.demand, "lies at", seq_num
                self._check("Q1", match_seq_num == seq_num, *what)
            if token is not None:
                in_force = timeline.before(key_of(dlsn))
                if in_force is not None:
                    is_met = token == in_force
                    self._check("K1", is_met, asked.demand, "lies at", dlsn, "under", in_force)
            if stamp is not None:
                self._check_order(stamp, latest)

    def _check_order(self, stamp: Stamp, latest: dict[str, tuple[int, int]]) -> None:
        """O3: the batches of a producer lie in the order of their epochs and sequences, dense."""
        name, epoch, sequence = stamp
        before = latest.get(name)
        latest[name] = (epoch, sequence)
        if before is not None:
            is_next = sequence == before[1] + 1 if epoch == before[0] else sequence == 0
            self._check("O3", epoch >= before[0] and is_next, stamp, "follows", before)

    def _check_refusals(
        self, complete: Sequence[Record], timeline: _Timeline, head_key: int
    ) -> None:
        """Each refusal's tail was the log's once. That nothing before it was asked for later is
        O2's to say, which takes a refusal for an event of the log's order."""
        # What lay in a hole has its numbers all the same, and nobody reads it.
        has_holes = bool(self._unordered)
        keys = [key_of(dlsn) for dlsn, _, _ in complete]
        for refusal, token in self._refused:
            key = key_of(refusal.dlsn)
            if key < head_key:
                continue
            count = bisect_left(keys, key)
            passed = complete[count - 1][1] + 1 if count else 0
            is_tail = passed == refusal.seq_num or (not count and head_key > 0)
            is_tail = is_tail or (has_holes and passed < refusal.seq_num)
            self._check("Q1", is_tail, refusal, "follows", passed, "records")
            in_force = timeline.before(key)
            if refusal.code == "fencing_token_mismatch" and in_force is not None:
                self._check("K1", token != in_force, refusal, "of the token in force:", token)

    # --- judgement -------------------------------------------------------------------------------

    def _check_floor(self, floor: int, dlsn: Dlsn, what: object) -> None:
        """A token that was set before something was asked for is known to whoever judged it."""
        if floor >= 0:
            self._check("K1", key_of(dlsn) > floor, what, "was judged at", dlsn, "before a token")

    def _check(self, code: str, is_kept: bool, *what: object) -> None:
        self._tally.check(code, is_kept, "log", self.log_id, *what)


class _Timeline:
    """Which token is in force where.

    Args:
        first_known: before this key nobody knows.
    """

    def __init__(self, tokens: dict[int, str], first_known: int) -> None:
        self._keys = sorted(tokens)
        self._tokens = [tokens[key] for key in self._keys]
        self._first_known = first_known

    def before(self, key: int) -> str | None:
        """The token in force just before a place; empty: none is set; None: nobody knows."""
        if key <= self._first_known and self._first_known:
            return None
        index = bisect_left(self._keys, key)
        return self._tokens[index - 1] if index else ""
