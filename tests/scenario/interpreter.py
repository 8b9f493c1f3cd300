"""The commands of a scenario, one method each, on one stage.

`run` takes a command line and returns its lines of output. A command is a word with words and
`name=value` options behind it; its method is `_do_<word>`. docs/scenarios.md lists them all.
Deterministic: the same commands give the same lines, always.

Called by `scenario_file`. Source: docs/scenarios.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.log_node import Ending, TrimPoint
from duramen.core.reading import effects as rx
from duramen.core.segment import Totals
from duramen.core.sequencer import effects as fx
from duramen.ids import (
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    Lsn,
    Member,
    SequencerId,
    ledger_of,
    lsn_of,
    parse_lsn,
)
from duramen.limits import ENTRY_BYTES_MAX
from duramen.units import parse_duration_us
from duramen.wire.entry import check_entry
from tests.combinations import FIRST, Combination
from tests.scenario.actors import Call, Leg, StageBookie
from tests.scenario.arithmetic import judge_cover, list_write_sets, place_ensemble
from tests.scenario.finding import Finding
from tests.scenario.formatting import Request, format_call, format_segment, kind_of
from tests.scenario.stage import CLIENT, LOG_ID, STORE, Line, Stage
from tests.unit.core_formatting import encode_plain_entry

_POSITION = r"e\d+n\d+"
_KINDS = ("add", "seal", "digest", "read", "lac", "poll", "commit", "nodes", "owed", "history")


class ScenarioError(Exception):
    """The file is no scenario, or a command makes no sense."""


class Interpreter:
    """Commands on one stage."""

    def __init__(self, combination: Combination = FIRST) -> None:
        self.stage = Stage(combination)
        self.finding = Finding()

    def run(self, command: str, *, fates_only: bool = False) -> list[str]:
        """Carry out one command and return its lines, or those of them that clients get to know."""
        is_quiet = fates_only or command.startswith("quiet ")
        word, *rest = command.removeprefix("quiet ").split()
        options = dict(pair.split("=", 1) for pair in rest if "=" in pair)
        words = [other for other in rest if "=" not in other]
        method: Callable[[list[str], dict[str, str]], None] | None
        method = getattr(self, f"_do_{word.replace('-', '_')}", None)
        if method is None:
            raise ScenarioError(f"{word} is no command")
        self.stage.lines = []
        method(words, options)
        lines = [line for line in self.stage.lines if line.is_fate or not is_quiet]
        return [_format_line(line) for line in lines] or ["ok"]

    # --- setting ---------------------------------------------------------------------------------

    def _do_cluster(self, words: list[str], options: dict[str, str]) -> None:
        count = int(options["bookies"])
        racks = options.get("racks", "").split(",") if "racks" in options else []
        regions = options.get("regions", "").split(",") if "regions" in options else []
        for index in range(count):
            name = f"b{index + 1}"
            rack = racks[index] if racks else f"rack{index + 1}"
            region = regions[index] if regions else "r"
            self.stage.bookies[name] = StageBookie(name, region, rack)
        self.stage.set_roster(list(self.stage.bookies))

    def _do_log(self, words: list[str], options: dict[str, str]) -> None:
        self.stage.make_log(options)

    def _do_roster(self, words: list[str], options: dict[str, str]) -> None:
        self.stage.set_roster(words)

    # --- sequencers ------------------------------------------------------------------------------

    def _do_takeover(self, words: list[str], options: dict[str, str]) -> None:
        node = self.stage.sequencer(words[0])
        close_only = "close-only" in words
        now_us = self.stage.now_us
        self.stage.feed(node, lambda core: core.take_over(now_us, close_only=close_only))

    def _do_open(self, words: list[str], options: dict[str, str]) -> None:
        """A takeover in which everything goes well, told in one line."""
        self._do_takeover(words, options)
        self.stage.run(lambda: self.stage.calls)
        self.stage.lines = []
        self._do_show(words, options)

    def _do_append(self, words: list[str], options: dict[str, str]) -> None:
        node = self.stage.sequencer(words[0])
        if not node.core.is_owner:
            raise ScenarioError(f"{node.name} does not own the log: it would be redirected")
        match = options.get("match")
        for name in words[1:]:
            self.stage.append(
                node, name, match=None if match is None else int(match), token=options.get("token")
            )

    def _do_fence(self, words: list[str], options: dict[str, str]) -> None:
        node = self.stage.sequencer(words[0])
        token = "" if words[1] == "none" else words[1]
        self.stage.fence(node, token, options.get("expected"))

    def _do_roll(self, words: list[str], options: dict[str, str]) -> None:
        self.stage.feed(self.stage.sequencer(words[0]), lambda core: core.request_roll())

    def _do_suspend(self, words: list[str], options: dict[str, str]) -> None:
        self._set_suspended(words[0], is_suspended=True)

    def _do_resume(self, words: list[str], options: dict[str, str]) -> None:
        self._set_suspended(words[0], is_suspended=False)

    def _set_suspended(self, name: str, *, is_suspended: bool) -> None:
        node = self.stage.sequencer(name)
        node.context.is_rolling_suspended = is_suspended
        self.stage.feed(node, lambda core: None)

    def _do_reconfigure(self, words: list[str], options: dict[str, str]) -> None:
        """Somebody changes the stored configuration; the sequencers named are told."""
        config = self.stage.reconfigure(options)
        version = self.stage.store.log.config_version
        now_us = self.stage.now_us
        for name in words:
            node = self.stage.sequencer(name)
            self.stage.feed(node, lambda core: core.on_config(config, version, now_us))

    def _do_stop(self, words: list[str], options: dict[str, str]) -> None:
        now_us = self.stage.now_us
        self.stage.feed(self.stage.sequencer(words[0]), lambda core: core.stop(now_us))

    def _do_end(self, words: list[str], options: dict[str, str]) -> None:
        self._finish(words[0], Ending.END)

    def _do_delete(self, words: list[str], options: dict[str, str]) -> None:
        self._finish(words[0], Ending.DELETE)

    def _finish(self, name: str, ending: Ending) -> None:
        now_us = self.stage.now_us
        self.stage.feed(self.stage.sequencer(name), lambda core: core.finish(ending, now_us))

    def _do_truncate(self, words: list[str], options: dict[str, str]) -> None:
        """The owner's control operation: a change of the log node beside the core."""
        writer = self.stage.sequencer(words[0]).core.writer
        store = self.stage.store
        if writer is None:
            raise ScenarioError(f"{words[0]} does not own the log: it does not know the LAC")
        end_seq_num = store.log.totals.record_count + writer.lac_totals.record_count
        end_lsn = lsn_of(writer.segment.epoch, EntryId(writer.lac + 1))
        point = TrimPoint(parse_lsn(words[1]), int(options.get("slot", 0)), int(options["seq"]))
        release = TrimPoint(end_lsn, 0, end_seq_num)
        if point > release:
            raise ScenarioError(f"{words[1]} is above the release pointer {release.dlsn}")
        unix_ms = self.stage.now_us // 1000
        log = store.log.with_trim(point, release=release, unix_ms=unix_ms, nonce="operator.1")
        store.commit((fx.SetLog(log, store.log_version),), SequencerId("operator"))
        self._show("log")

    def _do_commit(self, words: list[str], options: dict[str, str]) -> None:
        node, *how = words
        waiting = [
            c for c in self.stage.calls if c.sender == node and kind_of(c.request) == "commit"
        ]
        if not waiting:
            raise ScenarioError(f"{node} has no commit under way")
        self.stage.deliver_to_store(waiting[0], how[0] if how else "apply")

    def _do_late(self, words: list[str], options: dict[str, str]) -> None:
        self.stage.apply_late()

    def _do_expire(self, words: list[str], options: dict[str, str]) -> None:
        owner = self.stage.store.owner
        if owner is None or owner.sequencer_id != words[0]:
            raise ScenarioError(f"{words[0]} is not the owner")
        self.stage.store.owner = None

    # --- messages and time -----------------------------------------------------------------------

    def _select(self, words: Sequence[str], options: Mapping[str, str]) -> list[Call]:
        names = [w for w in words if w in self.stage.bookies or w == STORE]
        kinds = [w for w in words if w in _KINDS]
        positions = [parse_lsn(w) for w in words if re.fullmatch(_POSITION, w)]
        flags = ("all", "next", "requests", "answers")
        unknown = [
            w for w in words if w not in (*names, *kinds, *flags) and not re.fullmatch(_POSITION, w)
        ]
        if unknown:
            raise ScenarioError(f"nobody is called {unknown}")
        calls = self.stage.select(names, kinds)
        sender = options.get("from")
        calls = [c for c in calls if sender is None or c.sender == sender]
        if positions:
            calls = [c for c in calls if _position_of(c) in positions]
        legs = (Leg.ANSWER,) if "answers" in words else (Leg.REQUEST, Leg.ANSWER)
        legs = (Leg.REQUEST,) if "requests" in words else legs
        calls = [c for c in calls if c.leg in legs]
        return calls[:1] if "next" in words else calls

    def _do_deliver(self, words: list[str], options: dict[str, str]) -> None:
        calls = self._select(words, options)
        if not calls:
            raise ScenarioError("nothing to deliver")
        for call in calls:
            if call.leg is not Leg.DONE:
                self.stage.deliver(call, request_only="requests" in words)

    def _do_run(self, words: list[str], options: dict[str, str]) -> None:
        self.stage.run(lambda: self._select(words, options))

    def _do_drop(self, words: list[str], options: dict[str, str]) -> None:
        calls = self._select(words, options)
        if not calls:
            raise ScenarioError("nothing to drop")
        for call in calls:
            call.leg = Leg.LOST

    def _do_advance(self, words: list[str], options: dict[str, str]) -> None:
        self.stage.advance(parse_duration_us(words[0]))

    def _do_cut(self, words: list[str], options: dict[str, str]) -> None:
        node = self.stage.sequencer(words[0])
        node.cut_off += words[1:]
        node.context.is_metadata_reachable = STORE not in node.cut_off

    def _do_mend(self, words: list[str], options: dict[str, str]) -> None:
        node = self.stage.sequencer(words[0])
        node.cut_off = [name for name in node.cut_off if name not in words[1:]]
        node.context.is_metadata_reachable = STORE not in node.cut_off

    # --- bookies ---------------------------------------------------------------------------------

    def _do_crash(self, words: list[str], options: dict[str, str]) -> None:
        for name in words:
            if name in self.stage.bookies:
                self.stage.bookies[name].crash()
            else:
                self.stage.sequencers[name].is_up = False

    def _do_restart(self, words: list[str], options: dict[str, str]) -> None:
        for name in words:
            self.stage.bookies[name].restart()

    def _do_wipe(self, words: list[str], options: dict[str, str]) -> None:
        for name in words:
            self.stage.bookies[name].wipe()

    def _do_hold(self, words: list[str], options: dict[str, str]) -> None:
        for name in words:
            self.stage.bookies[name].is_held = True

    def _do_sync(self, words: list[str], options: dict[str, str]) -> None:
        for name in words:
            self.stage.sync(self.stage.bookies[name])

    def _do_damage(self, words: list[str], options: dict[str, str]) -> None:
        """Below the durable mark: one entry, or `all`: it may have been anything."""
        core = self.stage.bookies[words[0]].core
        if words[1] == "all":
            core.on_recovered_damage()
        else:
            lsn = parse_lsn(words[1])
            core.on_unreadable(ledger_of(LOG_ID, Epoch(lsn >> 32)), EntryId(lsn & 0xFFFF_FFFF))

    def _do_forget(self, words: list[str], options: dict[str, str]) -> None:
        lsn = parse_lsn(words[1])
        ledger_id = ledger_of(LOG_ID, Epoch(lsn >> 32))
        self.stage.bookies[words[0]].forget(ledger_id, EntryId(lsn & 0xFFFF_FFFF))

    def _do_lose(self, words: list[str], options: dict[str, str]) -> None:
        """No disk has these entries of a closed segment, and a person has accepted that (R15)."""
        store = self.stage.store
        for lsn in map(parse_lsn, words):
            epoch, entry = Epoch(lsn >> 32), EntryId(lsn & 0xFFFF_FFFF)
            ledger_id, bookies = ledger_of(LOG_ID, epoch), self.stage.bookies.values()
            copies = [c for b in bookies if (c := b.stored.get((ledger_id, entry))) is not None]
            for bookie in bookies:
                bookie.forget(ledger_id, entry)
            segment, version = store.segments[epoch]
            if isinstance(segment, FlexibleSegment):
                missing_count = segment.missing_record_count + check_entry(copies[0]).record_count
                lossy = segment.with_lost([(entry, entry)], missing_count, "operator.1")
            else:
                lossy = segment.with_lost([(entry, entry)], "operator.1")
            store.segments[epoch] = (lossy, version + 1)  # repair's change, not a core's

    def _do_check(self, words: list[str], options: dict[str, str]) -> None:
        """The bookie's driver reads the segment nodes that its core asked about (R10)."""
        bookie = self.stage.bookies[words[0]]
        for ledger_id in bookie.questions:
            segment, _ = self.stage.store.segments[Epoch(ledger_id & 0xFFFF_FFFF)]
            is_open = segment.state.value == "OPEN"
            self.stage.say(STORE, f"{bookie.name} reads: {format_segment(segment)}")
            bookie.core.on_segment_checked(ledger_id, is_open=is_open)
        bookie.questions.clear()
        bookie.drain(self.stage.now_us)

    def _do_ask(self, words: list[str], options: dict[str, str]) -> None:
        """A request by hand: `add e1n0 lac=-1`, `seal e1`, `lac e1 lac=0`, `read`, `poll`."""
        name, kind, where = words[:3]
        bookie = self.stage.bookies[name]
        life = int(options.get("life", bookie.life))
        member = Member(BookieId(name), Incarnation(f"{life:04x}" * 8))
        lsn = parse_lsn(where if "n" in where else f"{where}n0")
        epoch, entry = Epoch(lsn >> 32), EntryId(lsn & 0xFFFF_FFFF)
        ledger_id = ledger_of(LOG_ID, epoch)
        lac = EntryId(int(options.get("lac", -1)))
        request: Request
        if kind == "add":
            body = options.get("body", "x").encode()
            totals = Totals(1, len(body))
            payload = encode_plain_entry(ledger_id, entry, Totals(), [body], 1, totals)
            is_recovery = "recovery" in words
            request = fx.SendAdd(member, ledger_id, entry, lac, payload, is_recovery)
        elif kind == "seal":
            request = fx.SendSeal(member, LOG_ID, epoch)
        elif kind == "read" and "under-seal" in words:
            request = fx.SendRecoveryRead(member, ledger_id, entry)
        elif kind in ("read", "poll"):
            wait_us = parse_duration_us(options.get("wait", "1s")) if kind == "poll" else 0
            wait_for = EntryId(int(options.get("lac", entry)))
            request = rx.SendRead(
                0, member, ledger_id, entry, entry, ENTRY_BYTES_MAX, 0, wait_us, wait_for
            )
        else:
            request = fx.SendLac(member, ledger_id, lac)
        self.stage.deliver(self.stage.open_call(CLIENT, name, request))

    # --- readers ---------------------------------------------------------------------------------

    def _do_reader(self, words: list[str], options: dict[str, str]) -> None:
        lsn = parse_lsn(options.get("from", "e1n0"))
        position = (Epoch(lsn >> 32), EntryId(lsn & 0xFFFF_FFFF))
        self.stage.add_reader(words[0], position, is_following="follow" in words)

    def _do_watch(self, words: list[str], options: dict[str, str]) -> None:
        """The reader's watch fires."""
        reader = self.stage.readers[words[0]]
        self.stage.show_nodes(reader, reader.core.epoch)

    # --- arithmetic ------------------------------------------------------------------------------

    def _do_covers(self, words: list[str], options: dict[str, str]) -> None:
        self.stage.lines += judge_cover(options)

    def _do_write_sets(self, words: list[str], options: dict[str, str]) -> None:
        self.stage.lines += list_write_sets(options)

    def _do_placement(self, words: list[str], options: dict[str, str]) -> None:
        self.stage.lines += place_ensemble(options)

    # --- positions -------------------------------------------------------------------------------

    def _do_segment(self, words: list[str], options: dict[str, str]) -> None:
        self.stage.lines += self.finding.add_segment(words)

    def _do_trim(self, words: list[str], options: dict[str, str]) -> None:
        live_count, first_live = int(options["live"]), int(options.get("first", "e1")[1:])
        self.stage.lines += self.finding.trim(live_count, first_live)

    def _do_find(self, words: list[str], options: dict[str, str]) -> None:
        self.stage.lines += self.finding.find(words)

    # --- show ------------------------------------------------------------------------------------

    def _do_show(self, words: list[str], options: dict[str, str]) -> None:
        for word in words:
            self._show(word)

    def _show(self, word: str) -> None:
        stage = self.stage
        if word == "log":
            stage.say(STORE, f"{stage.store.log!r} v{stage.store.log_version}")
            owner = stage.store.owner
            said = "nobody" if owner is None else f"{owner.sequencer_id} e{owner.epoch}"
            stage.say("", f"owner {said}")
        elif word == "segments":
            for segment, version in stage.store.segments.values():
                stage.say(STORE, f"{format_segment(segment)} v{version}")
        elif word == "flight":
            for call in stage.calls:
                at = f"{call.sender} → {call.target}" if call.leg is not Leg.ANSWER else (
                    f"{call.target} → {call.sender}")  # fmt: skip
                stage.say(at, f"{format_call(call.request)} ({call.leg.value})")
        elif word == "bookies":
            for bookie in stage.bookies.values():
                self._show_bookie(bookie)
        elif word in stage.bookies:
            self._show_bookie(stage.bookies[word])
        elif word in stage.readers:
            stage.say(word, repr(stage.readers[word].core))
        elif word in stage.sequencers:
            stage.say(word, repr(stage.sequencers[word].core))
        else:
            raise ScenarioError(f"{word} cannot be shown")

    def _show_bookie(self, bookie: StageBookie) -> None:
        if not bookie.is_up:
            self.stage.say(bookie.name, "down")
            return
        core = bookie.core
        held = []
        for ledger_id, ledger in core.list_ledgers():
            ranges = " ".join(
                f"{a}" if a == b else f"{a}-{b}" for a, b in ledger.stored.list_ranges()
            )
            epoch = ledger_id & 0xFFFF_FFFF
            held.append(f"e{epoch} [{ranges}] lac={ledger.lac} highest={ledger.highest}")
        sealed = core.sealed_epoch(LOG_ID)
        seal = f"sealed e{sealed}" if sealed else "not sealed"
        waiting = f", {bookie.unsynced_count} unsynced" if bookie.unsynced_count else ""
        self.stage.say(bookie.name, f"{', '.join(held) or 'nothing'}, {seal}{waiting}")


def _format_line(line: Line) -> str:
    """Short names in a column; longer ones stand before a colon."""
    if len(line.actor) > 3:
        return f"{line.actor}: {line.text}"
    return f"{line.actor:<3} {line.text}".rstrip()


def _position_of(call: Call) -> Lsn | None:
    entry = getattr(call.request, "entry", getattr(call.request, "first", None))
    ledger_id = getattr(call.request, "ledger_id", None)
    if entry is None or ledger_id is None:
        return None
    return Lsn(((ledger_id & 0xFFFF_FFFF) << 32) + entry)
