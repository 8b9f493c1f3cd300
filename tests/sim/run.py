"""One run: a world full of faults, then a healed one that must converge and still know everything.

Phase 1: clients append and readers follow while the nemesis breaks things. Phase 2: the network is
clean, every process runs, a few appends per log must be acknowledged within bounded virtual time;
then the clients end, every log must be closed, and a fresh reader reads each from its head: what it
reads is judged against everything that anybody was ever told.

Called by `__main__` and `test_sim`. Documented in docs/testing.md.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from duramen.core.duty import Duty
from duramen.core.flexible.recovery import FlexibleRecovery
from duramen.core.flexible.repair.audit import list_needed
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.life import retention
from duramen.core.log_node import LogNode
from duramen.core.placement import Candidate
from duramen.core.repair.audit import first_needed
from duramen.core.segment import TRANSITIONS, Segment, SegmentState
from duramen.core.sequencer.exactly_once import snapshots
from duramen.core.sequencer.log_state import LogState
from duramen.ids import BookieId, Dlsn, EntryId, Epoch, LedgerId, LogId, Member, SequencerId
from duramen.runtime.stores.metadata_store import Create, DeleteNode, Op, Set, parent_path
from duramen.units import MS, SECOND
from duramen.wire.metadata_json import BookieNode as OwnFields
from duramen.wire.metadata_json import (
    encode_log,
    encode_node,
    read_any_segment,
    read_bookie,
    read_log,
)
from tests.sim.archive.archiver import Archiver
from tests.sim.archive.cold_files import ColdFiles
from tests.sim.checkers import Checkers, Violation
from tests.sim.clock import virtual_time
from tests.sim.errors import format_finding
from tests.sim.exact_clients import ExactClient
from tests.sim.garbage import collected_afterwards
from tests.sim.log_kinds import list_members, rule_of_configs
from tests.sim.long_sleeps import LongSleeps
from tests.sim.members.hints import OwnerWatch
from tests.sim.metadata import PATHS, Store, StoreSession
from tests.sim.metadata_logs import MetadataLogWatch
from tests.sim.nemesis import Nemesis
from tests.sim.network import Network
from tests.sim.options import ASKED_ZOMBIE, Options, draw_options
from tests.sim.processes import CLUSTER, BookieNode
from tests.sim.reading.final import WholeReader
from tests.sim.reading.listing import ListingReader
from tests.sim.reading.proxy import Cluster, ReadProxy
from tests.sim.reading.subscribers import Subscriber, SubscriberNode
from tests.sim.repair.copies import CopyJudge
from tests.sim.repair.copy_record import REPAIR
from tests.sim.repair.map_record import name_change
from tests.sim.sequencers import SequencerNode
from tests.sim.session_clients import SessionClient
from tests.sim.tails import TailNode
from tests.sim.trimming import Trimmer
from tests.sim.workload import ClientNode
from tests.sim.world import Node, World

CONVERGE_US: Final = 90 * SECOND
"""Longer than every time-out of the product that may have to pass one after the other: session
expiry, calls, retries and scans for orphans."""

SESSION_CLIENT: Final = 1
"""The plain client that appends in sessions."""

REPAIR_US: Final = 180 * SECOND
"""What failed again and again is tried again after a minute."""

_TRANSITION_NAMES: Final = {SegmentState.IN_RECOVERY: "marked", SegmentState.CLOSED: "closed"}
_SNAPSHOTS: Final = "SNAPSHOT_ENTRY_COUNT"
_LOOK_AGAIN: Final = "HELD_AGAIN_MS"
"""Constants of the product that are far too large for a minute."""

_GIVING_UP_MAX: Final = 20
"""Readings of one log at the end, each broken by retention, before it is called stuck."""

_MOVE_READERS_US: Final = 4 * SECOND


class Stuck(Violation):
    """The healed system did not converge."""


@dataclass(slots=True)
class Result:
    """What became of a run."""

    seed: int
    options: Options
    digest: str
    simulated_us: int
    event_count: int
    counts: Counter[str]
    violation: str | None = None
    """What was broken: a checker's code, a core's assertion or error, or the final liveness."""
    story: list[str] = field(default_factory=list)


class Run:
    """One seed's cluster."""

    make_checkers: type[Checkers] = Checkers

    def __init__(
        self, seed: int, *, duration_us: int | None = None, with_trace: bool = False,
        drawn: Options | None = None,
    ) -> None:  # fmt: skip
        self.seed = seed
        self.options = options = drawn or draw_options(seed, duration_us=duration_us)
        self.world = world = World(seed, with_trace=with_trace)
        self.locations: dict[Member, Candidate] = {}
        rules = {LogId(i + 1): rule_of_configs(*kinds) for i, kinds in enumerate(options.log_kinds)}
        self.checkers = self.make_checkers(
            self.locations, rules, pipelined=range(1, options.client_count + 3),
            clock_skew_us=options.clock_skew_us,
        )  # fmt: skip
        self.network = Network(world, options)
        self.store = Store(world, self.network, options, self._on_applied)
        cluster = {"uuid": CLUSTER, "last_log_id": len(options.logs)}
        self.store.put(PATHS.cluster, encode_node(cluster))
        self._log_paths = [PATHS.log(LogId(i + 1)) for i in range(len(options.logs))]
        self.metadata_logs = MetadataLogWatch(world, self.store, self.checkers, rules)
        for number, config in enumerate(options.logs):
            log_id = LogId(number + 1)
            self.checkers.conditions(log_id).on_wish(config.ack_mode)
            stored = encode_log(LogNode(log_id, "ns", f"log-{number}", config))
            self.store.put(PATHS.log(log_id), stored)
            self.store.put(parent_path(PATHS.segment(log_id, Epoch(1))))
        self.segments: dict[LedgerId, AnySegment] = {}
        self.bookies: dict[str, BookieNode] = {}
        self.sequencers: dict[str, SequencerNode] = {}
        self._owners = OwnerWatch(len(options.logs), self.sequencers, self.checkers)
        self._make_processes()
        for node in (*self.bookies.values(), *self.sequencers.values()):
            node.start()
        self._ending: list[LogId] = []
        """Logs that are ended when everything is closed."""
        self.final_tokens: dict[LogId, list[tuple[Dlsn, str]]] = {}
        self._heads: dict[LogId, tuple[Epoch, EntryId]] = {}
        self.cold_files = ColdFiles(world, seed) if options.archiver_count else None
        self.clients = [
            (SessionClient if i == SESSION_CLIENT else ClientNode)(
                world,
                i,
                options=options,
                network=self.network,
                store=self.store,
                sequencers=self.sequencers,
                history=self.checkers,
            )
            for i in range(options.client_count)
        ]
        self.exact = self._make_exact_client(options.client_count, options)
        self._askers = self._make_askers()
        self._make_readers()
        self.judge = CopyJudge(self.store, self.bookies, self.segments, self._list_all_logs, rules)
        self.nemesis = Nemesis(
            world,
            options=options,
            network=self.network,
            store=self.store,
            bookies=self.bookies,
            sequencers=self.sequencers,
            segments=self.segments,
            on_gone=self.checkers.on_disk_gone,
            on_lost=self.checkers.on_lost,
            on_pulled=self.checkers.on_pulled,
            judge=self.judge,
            sleeps=LongSleeps(world, self.store, self._list_nodes(), self._log_paths),
            askers=self._askers,
        )
        Trimmer(world, seed, self.sequencers, len(options.logs), self.checkers)

    def _list_nodes(self) -> list[Node]:
        """Every process but the one that looks for tails."""
        servers = *self.sequencers.values(), *self.bookies.values()
        return [*servers, *self.clients, self.exact, *self.readers, *self.archivers]

    def _make_processes(self) -> None:
        options = self.options
        for index in range(len(options.places)):
            bookie = BookieNode(
                self.world, index, options=options, store=self.store, network=self.network,
                bookies=self.bookies, sequencers=self.sequencers, judge=self.checkers,
            )  # fmt: skip
            self.bookies[bookie.name] = bookie
        for index in range(options.sequencer_count):
            sequencer = SequencerNode(
                self.world, index, options=options, store=self.store, network=self.network,
                bookies=self.bookies, peers=self.sequencers, watcher=self,
            )  # fmt: skip
            self.sequencers[sequencer.name] = sequencer

    def _make_readers(self) -> None:
        world, options = self.world, self.options
        regions = sorted({region for region, _ in options.places})
        self.cluster = cluster = Cluster(
            self.seed, len(options.logs), self.network, self.store, self.bookies, self.checkers,
            self.cold_files, self.sequencers if options.has_owner_lacs else {},
        )  # fmt: skip
        self.archivers = [
            Archiver(world, index, regions, cluster) for index in range(options.archiver_count)
        ]
        self.readers = [
            SubscriberNode(world, index, regions, cluster) for index in range(options.reader_count)
        ]
        self.tails = TailNode(world, options.places[0][0], cluster)
        self.final_readers: list[ReadProxy] = []
        self._does_move = True
        world.at(300 * MS, self._move_readers)

    def _make_askers(self) -> list[ExactClient]:
        """Two clients that do nothing by themselves, if a fault needs them."""
        idle = replace(self.options, producer_count=0)
        numbers = (1, 2) if ASKED_ZOMBIE in self.options.faults else ()
        return [self._make_exact_client(self.exact.index + number, idle) for number in numbers]

    def _make_exact_client(self, index: int, options: Options) -> ExactClient:
        return ExactClient(
            self.world,
            index,
            options=options,
            network=self.network,
            store=self.store,
            sequencers=self.sequencers,
            history=self.checkers,
        )

    # --- Play ------------------------------------------------------------------------------------

    def play(self) -> Result:
        """Both phases; a violation is told in the result."""
        with virtual_time(self.world, self.seed):
            result = self._play()
            try:
                self._tear_down()
            except Exception as error:  # a finding as in the run itself
                # What ends goes on from whatever was found: only the first finding counts.
                found = f"at the end: {format_finding(error)}"
                result = replace(result, violation=result.violation or found)
            return result

    def _tear_down(self) -> None:
        """What was to be judged has been; only what is left to finalizers must not act."""
        for node in (*self.bookies.values(), *self.sequencers.values()):
            node.loop.forget()
            node.loop.close_left()
        readers = *self.readers, *self.final_readers, self.tails
        for node in (*readers, *self.archivers, *self._list_clients()):
            node.run(node.life, node.loop.cancel_all)

    def _play(self) -> Result:
        violation: str | None = None
        kept = vars(snapshots)[_SNAPSHOTS], vars(retention)[_LOOK_AGAIN]
        try:
            setattr(snapshots, _SNAPSHOTS, self.options.snapshot_entry_count)
            if self.archivers:
                setattr(retention, _LOOK_AGAIN, 2_000)
            self.world.advance(self.options.duration_us)
            self._heal()
            if self._converge():
                self._check_moved()
                complete = self._read_all()
                self._wait_subscribers(complete)
                self.checkers.finish(complete, self.final_tokens, self._heads)
        except _Refused:
            pass
        except Exception as error:  # a core that raises is a finding like any other
            is_judged = isinstance(error, Violation | AssertionError)
            self.world.note("world", "violation" if is_judged else "error", str(error))
            violation = format_finding(error)
        finally:
            setattr(snapshots, _SNAPSHOTS, kept[0])
            setattr(retention, _LOOK_AGAIN, kept[1])
        world = self.world
        self._count_checks()
        return Result(
            self.seed,
            self.options,
            world.digest,
            world.now_us,
            world.event_count,
            world.counts,
            violation,
            world.format_story() if violation or world.with_trace else [],
        )

    def _heal(self) -> None:
        self.world.note("world", "heal")
        self._does_move = False
        self.nemesis.stop()
        self.network.heal()
        self.store.heal()
        if self.cold_files is not None:
            self.cold_files.heal()
        for bookie in self.bookies.values():
            bookie.disk.slow_us = 0
            bookie.disk.empty()
            bookie.disk.fails_next_sync = False
        for node in (*self.bookies.values(), *self.sequencers.values()):
            if node.is_paused:
                node.resume()
            node.start()
        for client in self._list_clients():
            client.slow_factor = 8

    def _list_clients(self) -> list[ClientNode | ExactClient]:
        return [*self.clients, self.exact, *self._askers]

    def _converge(self) -> bool:
        """Appends to every log succeed again; then all of it is closed. False: refused for good."""
        is_bound = not self.options.is_beyond_budget
        if self.options.has_repair and not self._wait(self._call_back):
            raise Stuck("liveness", "drains cannot be cancelled: is there an auditor?")
        clients = self._list_clients()
        before = [client.acknowledged_count for client in clients]

        def has_progress() -> bool:
            now = [client.acknowledged_count for client in clients]
            return all(a + 2 <= b or a > 1 << 50 for a, b in zip(before, now, strict=True))

        if not self._wait(has_progress) and is_bound:
            raise Stuck("liveness", f"no appends after the faults: {self._format_logs()}")
        for client in clients:
            client.run(client.life, client.finish)
        self._wait(lambda: not any(client.open for client in clients) and not self.exact.is_setting)
        for client in clients:
            assert not client.open, f"{client.name} waits for ever: {sorted(client.open)}"
        self._ending = [log_id for log_id, _ in self._list_logs() if self.world.chance(0.5)]
        if self._wait(self._close_all):
            self._append_to_ended()
            if self.options.has_repair:
                self._wait_repair()
            return True
        if is_bound:
            raise Stuck("liveness", f"not everything is closed: {self._format_logs()}")
        self.world.counts["refused beyond the budget"] += 1
        return False

    def _wait(self, condition: Callable[[], bool]) -> bool:
        end_us = self.world.now_us + CONVERGE_US
        while not condition():
            if self.world.now_us >= end_us:
                return False
            for node in (*self.bookies.values(), *self.sequencers.values()):
                node.start()  # one that was being stopped when the faults ended
            self.world.advance(self.world.now_us + 200 * MS)
        return True

    def _call_back(self) -> bool:
        """Every bookie that is there takes new data again."""
        return not self.nemesis.repair.cancel_drains()

    def _wait_repair(self) -> None:
        """Every copy is made anew, and lies where it may; no note about one is left."""
        end_us = self.world.now_us + REPAIR_US
        while missing := self._list_unrepaired():
            if self.world.now_us >= end_us:
                if self.options.is_beyond_budget:
                    self.world.counts["beyond repair"] += 1
                    return
                raise Stuck("liveness", f"copies are not repaired: {missing[:5]}")
            self.world.advance(self.world.now_us + SECOND)
        self.world.counts["everything repaired"] += 1

    def _list_unrepaired(self) -> list[str]:
        missing: list[object] = [*self.judge.list_missing(is_final=True)]
        missing += missing or self.judge.list_misplaced()
        return [*map(str, missing), *self.judge.list_notes()]

    def _close_all(self) -> bool:
        """Ask whoever is at it to close; whether every epoch of every log is closed.

        One that still reads or claims may open the next epoch, so it is waited for.
        """
        is_done = self.metadata_logs.is_closed
        for log_id, log in self._list_logs():
            is_done = is_done and not log.unclosed_epochs
            for sequencer in self.sequencers.values():
                driver = sequencer.drivers.get(log_id)
                if driver is None or driver.core.state is LogState.IDLE:
                    continue
                is_done = False
                if driver.core.state is LogState.ACTIVE:
                    what = "end" if log_id in self._ending else "close"
                    sequencer.run(sequencer.life, sequencer.disturb, log_id, what)
        return is_done

    def _append_to_ended(self) -> None:
        """A log that was ended with its last segment takes nothing any more, and says so."""
        ended = [log_id for log_id, log in self._list_logs() if log.is_ended]
        self.world.counts["log ended"] += len(ended)
        before = self.world.counts["exact append: log_ended"]
        for log_id in ended:
            self.exact.append_plain(log_id)
        self._wait(lambda: not self.exact.open)
        refused = self.world.counts["exact append: log_ended"] - before
        assert refused == len(ended), f"{ended} were ended, {refused} refuse appends"

    def _list_all_logs(self) -> list[tuple[LogId, LogNode]]:
        return [*self._list_logs(), *self.metadata_logs.list_nodes()]

    def _list_logs(self) -> list[tuple[LogId, LogNode]]:
        log_ids = [LogId(number + 1) for number in range(len(self.options.logs))]
        return [(log_id, self.find_log(log_id)) for log_id in log_ids]

    def _check_moved(self) -> None:
        """What may leave the metadata store leaves it, and readers list what has left."""
        watch = self.metadata_logs
        if not self.options.has_metadata_logs or self.options.is_beyond_budget:
            return
        if not self._wait(lambda: not watch.list_due()):
            raise Stuck("liveness", f"keepers leave this undone: {watch.list_due()}")
        reader = ListingReader(self.world, self.options.places[0][0], self.cluster)
        self.final_readers.append(reader)
        if not self._wait(lambda: reader.is_done):
            raise Stuck("liveness", f"segments cannot be listed: {reader.failure}")
        for listing in reader.listings:
            watch.check_listing(listing)

    def _read_all(self) -> dict[LogId, list[tuple[Dlsn, int, bytes]]]:
        """A fresh reader for each log, from the oldest segment that is left to its end.

        Where there is repair, from the trim point: what is truncated is not repaired.
        """
        complete: dict[LogId, list[tuple[Dlsn, int, bytes]]] = {}
        for log_id, log in self._list_logs():
            first = (Epoch(0), EntryId(0))
            for _ in range(_GIVING_UP_MAX):
                # Where a segment is given up under a reader, it passes over truncated ones too.
                if first == self._find_head(log_id):
                    break
                first = self._find_head(log_id)
                complete[log_id] = self._read_whole(log_id, first, log.next_epoch)
            else:
                raise Stuck("liveness", f"segments of log {log_id} are given up all the time")
            self._heads[log_id] = first
        return complete

    def _find_head(self, log_id: LogId) -> tuple[Epoch, EntryId]:
        log = self.find_log(log_id)
        if self.options.has_repair:
            return log.trim.dlsn.epoch, log.trim.dlsn.entry
        return log.first_live_epoch, EntryId(0)

    def _read_whole(
        self, log_id: LogId, first: tuple[Epoch, EntryId], end: Epoch
    ) -> list[tuple[Dlsn, int, bytes]]:
        region = self.options.places[0][0]
        reader = WholeReader(self.world, log_id, region, self.cluster, first, end)
        self.final_readers.append(reader)
        if not self._wait(lambda: reader.is_done):
            if self.options.is_beyond_budget:
                self.world.counts["refused beyond the budget"] += 1
                raise _Refused
            raise Stuck("liveness", f"log {log_id} cannot be read: it is at {reader.position}")
        self.final_tokens[log_id] = reader.tokens
        return reader.records

    # --- Readers ---------------------------------------------------------------------------------

    def _move_readers(self) -> None:
        """Readers begin anew, from somewhere else, now and then."""
        if self._does_move:
            for reader in self.readers:
                if not reader.is_paused:
                    reader.run(reader.life, reader.move)
            self.world.at(self.world.between(SECOND, 2 * _MOVE_READERS_US), self._move_readers)

    def _wait_subscribers(self, complete: dict[LogId, list[tuple[Dlsn, int, bytes]]]) -> None:
        """Whoever follows a log comes to its end."""
        ends = {log_id: rows[-1][1] + 1 for log_id, rows in complete.items() if rows}
        subscribers = [one for reader in self.readers for one in reader.subscribers]

        def list_behind() -> list[Subscriber]:
            return [one for one in subscribers if one.is_behind(ends.get(one.log_id, 0))]

        if self._wait(lambda: not list_behind()):
            self.world.counts["subscriber has it all"] += len(subscribers)
            return
        if not self.options.is_beyond_budget:
            raise Stuck("liveness", f"not all is delivered: {list_behind()}")
        for subscriber in list_behind():
            subscriber.leave()

    # --- What checkers are told ------------------------------------------------------------------

    def on_entry_acknowledged(
        self, now_us: int, segment: AnySegment, entry_id: EntryId, crc: int
    ) -> None:
        self.world.counts["entry acknowledged"] += 1
        self.checkers.on_entry_acknowledged(now_us, segment, entry_id, crc)

    def on_sealed_by_cover(
        self, author: str, log_id: LogId, epoch: Epoch, responders: tuple[Member, ...]
    ) -> None:
        self.nemesis.on_cover(author, log_id)
        self.checkers.on_sealed_by_cover(log_id, epoch, responders)

    def on_conclusion(self, segment: AnySegment, sequencer_id: SequencerId) -> None:
        self._report_closed(segment, sequencer_id)

    def on_recovered(self, recovery: FlexibleRecovery) -> None:
        end = recovery._end
        assert end is not None, recovery
        self.checkers.on_recovered(
            recovery.segment, recovery._lac, end, recovery._absent_entries, recovery._gone
        )

    def on_metadata_entry(self, ledger_id: LedgerId, entry_id: EntryId, payload: bytes) -> None:
        self.metadata_logs.record.on_entry_sent(ledger_id, entry_id, payload)

    def on_memory(self, now_us: int, what: str, size: int, bound: int) -> None:
        self.checkers.on_memory(now_us, what, size, bound)

    def _on_applied(self, op: Op, before: bytes | None, session: StoreSession) -> None:
        if self.metadata_logs.on_applied(op, before, session):
            return
        if isinstance(op, Set) and before is not None and op.path in self._log_paths:
            self._report_log_changed(read_log(before), read_log(op.data))
            return
        if isinstance(op, DeleteNode) and before is not None and "/segments/" in op.path:
            self._report_removed(read_any_segment(before))
            return
        if isinstance(op, Set) and before and op.path.startswith(f"{PATHS.bookies}/"):
            self._report_duty(op.path, read_bookie(before), read_bookie(op.data))
            return
        if not isinstance(op, Set | Create) or "/segments/" not in op.path:
            self._owners.on_applied(op, before, session)
            return
        segment = read_any_segment(op.data)
        author = SequencerId(session.node.name)
        self.segments[segment.ledger_id] = segment
        self.world.note(author, "applied", repr(segment))
        for member in list_members(segment):
            if member not in self.locations:
                self.locations[member] = self.bookies[member.bookie].candidate_of(member)
        if before is None:
            self.world.counts["segment new → OPEN"] += 1
            self.checkers.on_segment_opened(segment.log_id, segment.epoch, author, segment.ack_mode)
            self.nemesis.on_transition(author, "opened", segment.log_id)
            return
        old = read_any_segment(before)
        if isinstance(old, Segment) and isinstance(segment, Segment):
            first = first_needed(self.find_log(segment.log_id), segment)
            is_quiet = self.judge.is_quiet(old, segment, self.world.now_us)
            self.world.counts["repair of what is quiet"] += is_quiet
            self.checkers.on_segment_changed(old, segment, first, is_quiet=is_quiet)
        self._report_copies(old, segment)
        if isinstance(old, FlexibleSegment) and isinstance(segment, FlexibleSegment):
            self._report_map(old, segment, author)
        if segment.lost != old.lost:
            is_possible = self.options.is_beyond_budget
            self.checkers.on_loss_recorded(segment, is_possible=is_possible)
        if segment.state is old.state:
            if isinstance(old, Segment) and isinstance(segment, Segment):
                self._report_changed(old, segment, author)
        else:
            assert segment.state in TRANSITIONS[old.state], (old, segment)
            self.world.counts[f"segment {old.state.value} → {segment.state.value}"] += 1
            self.nemesis.on_transition(author, _TRANSITION_NAMES[segment.state], segment.log_id)
        if segment.is_closed:
            self.world.counts["segment with holes"] += len(segment.holes) > 0
            self._report_closed(segment, author)
            if old.state is not segment.state:
                completed_us = (segment.completed_unix_ms or 0) * MS
                self.checkers.on_completed(
                    self.world.now_us, segment.log_id, segment.epoch, completed_us
                )

    def _report_map(
        self, old: FlexibleSegment, segment: FlexibleSegment, author: SequencerId
    ) -> None:
        needed = list_needed(self.find_log(segment.log_id), segment)
        self.checkers.on_map_changed(old, segment, needed)
        if what := name_change(old, segment):
            self.world.counts[f"{what} (flexible)"] += 1
            self.nemesis.on_transition(author, what, segment.log_id)

    def _report_changed(self, old: Segment, segment: Segment, author: SequencerId) -> None:
        if segment.nonce.startswith(REPAIR):
            is_swap = [f.ensemble for f in old.fragments] != [f.ensemble for f in segment.fragments]
            what = "copies swapped" if is_swap else "fragment proved"
            self.world.counts[f"{what} ({segment.state.value})"] += 1
            self.nemesis.on_transition(author, what, segment.log_id)
            return
        if segment.fragments == old.fragments:
            return
        if segment.state is SegmentState.OPEN:
            self.checkers.on_ensemble_changed(segment)
        self.nemesis.on_transition(author, "ensemble changed", segment.log_id)

    def _report_copies(self, old: AnySegment, segment: AnySegment) -> None:
        """What the metadata say of cold copies, and what of hot ones that are gone."""
        stored = None
        if segment.cold_copy is not None and segment.cold_copy != old.cold_copy:
            assert self.cold_files is not None, segment
            stored = self.cold_files.list_entries(segment.cold_copy.attempt)
        self.checkers.on_copies_changed(self.world.now_us, old, segment, stored)

    def _report_duty(self, path: str, before: OwnFields, after: OwnFields) -> None:
        if after.duty is before.duty:
            return
        name = path.rpartition("/")[2]
        self.world.note(name, f"duty {after.duty.value}")
        self.world.counts[f"duty {before.duty.value} → {after.duty.value}"] += 1
        if after.duty is Duty.DRAINED:
            member = Member(BookieId(name), after.incarnation)
            maps = [segment for _, segment in self.judge.list_maps()]
            self.checkers.on_drained(member, self.judge.list_live(), maps)

    def _report_log_changed(self, before: LogNode, after: LogNode) -> None:
        counts = self.world.counts
        counts["segments given up"] += after.first_live_epoch - before.first_live_epoch
        counts["hot copies released"] += after.first_hot_epoch - before.first_hot_epoch
        counts["log node trimmed"] += after.trim_lsn != before.trim_lsn
        counts["snapshot named"] += after.snapshot_lsn != before.snapshot_lsn
        self.checkers.on_log_changed(self.world.now_us, before, after)

    def _report_removed(self, segment: AnySegment) -> None:
        self.segments.pop(segment.ledger_id, None)
        if self.metadata_logs.has_moved(segment):
            return
        self.world.counts["segment node removed"] += 1
        self.checkers.on_segment_removed(segment.log_id, segment.epoch)

    def find_log(self, log_id: LogId) -> LogNode:
        """The log node as it is now."""
        stored = self.store.find(PATHS.log(log_id))
        assert stored is not None
        return read_log(stored.data)

    def _report_closed(self, segment: AnySegment, author: SequencerId) -> None:
        assert segment.last_entry is not None and segment.totals is not None
        assert segment.start_seq_num is not None
        self.checkers.on_segment_closed(
            segment.log_id, segment.epoch, segment.last_entry, segment.totals,
            segment.start_seq_num, author, holes=segment.holes,
        )  # fmt: skip

    def _count_checks(self) -> None:
        for code, count in self.checkers.statistics().items():
            self.world.counts[f"check {code}"] += count
        for client in self._list_clients():
            for name, count in client.proxy.appender.statistics().items():
                self.world.counts[f"proxy: {name}"] += count

    def _format_logs(self) -> str:
        cores = [
            f"{name} {driver.core!r}"
            for name, sequencer in self.sequencers.items()
            for driver in sequencer.drivers.values()
        ]
        return f"{self._list_logs()} {cores}"


class _Refused(Exception):
    """Beyond the budget: what is lost cannot be read, and the system says so."""


def run_seed(
    seed: int,
    *,
    duration_us: int | None = None,
    with_trace: bool = False,
    copysets: str = "striped",
) -> Result:
    """Play one seed."""
    drawn = draw_options(seed, duration_us=duration_us, copysets=copysets)
    with collected_afterwards():
        return Run(seed, drawn=drawn, with_trace=with_trace).play()


def play_uncollected(
    seed: int, *, duration_us: int | None = None, copysets: str = "striped"
) -> Result:
    """As `run_seed`, in a process that ends afterwards: no garbage is collected any more."""
    gc.disable()
    drawn = draw_options(seed, duration_us=duration_us, copysets=copysets)
    return Run(seed, drawn=drawn).play()
