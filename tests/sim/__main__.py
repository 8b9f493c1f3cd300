"""`python -m tests.sim`, which is `make sim`: play seeds, tell which fail, sum up what happened.

`--seeds N [--first K] [--jobs J]` plays N seeds; `--seed X [--trace]` plays one; `--copysets` says
what their logs are. A failing seed prints itself, its options in one line, the violation and its
last events; a sweep of at least 100 seeds also fails when something that it must meet (`REQUIRED`,
of drawn logs `FLEXIBLE` too) never happened, unless all logs are of one kind or mixed by request.
`--choose K` says after a sweep which seeds the gate plays besides its first K (`choosing`).

Exit codes: 0 all is well, 1 a seed failed or a sweep has a gap, 2 usage.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from duramen.units import SECOND
from tests.sim.choosing import choose_seeds
from tests.sim.log_kinds import DRAWN
from tests.sim.log_kinds import KINDS as LOG_KINDS
from tests.sim.long_sleeps import KINDS
from tests.sim.nemesis import RECORDED, TRANSITIONS
from tests.sim.options import FAULTS, GOSSIP_FAULTS, RARE_FAULTS, REPAIR_FAULTS
from tests.sim.run import Result, play_uncollected, run_seed

GAP_SEEDS_MIN: Final = 100
"""A sweep that is shorter may miss something rare by chance. Seeds that were chosen for what they
meet are judged however few they are (`test_sim`)."""

LOG_STEPS: Final = (
    "idle → reading", "reading → claiming", "reading → recovering", "claiming → active",
    "claiming → reading", "claiming → recovering", "recovering → reading", "reading → active",
    "reading → idle", "active → draining", "draining → active", "draining → closing",
    "closing → active", "closing → idle", "active → reading", "draining → reading",
    "reading → rebuilding", "claiming → rebuilding", "rebuilding → active",
)  # fmt: skip
WRITER_STEPS: Final = (
    "new → open", "open → changing", "changing → open", "open → held", "open → fenced",
    "changing → fenced", "held → open",
)  # fmt: skip
RECOVERY_STEPS: Final = (
    "new → mark", "new → seal", "mark → seal", "seal → read", "read → write back",
    "write back → read", "read → close", "close → done",
)  # fmt: skip

EXACTLY_ONCE: Final = (
    "append was there before", "append was there long before", "append accepted: match",
    "append accepted: token", "append accepted: plain", "append condition_failed",
    "append fencing_token_mismatch", "producer began anew", "producer: append_uncertain",
    "producer: producer_gap", "producer: producer_fenced", "batch fenced for good",
    "repetition answered", "token set", "token: append_uncertain",
    "token: fencing_token_mismatch", "snapshot read", "snapshot named", "history read",
)  # fmt: skip
WISHES: Final = (
    "log may change its mode", "order asked for", "producer: needs_ordered",
    "producer: mode_changing", "exact append: needs_ordered", "exact append: mode_changing",
    "entry compressed",
)  # fmt: skip
OWNERSHIP: Final = (
    "hand-over: closed True", "hand-over: log_unavailable", "append held while its log leaves",
    "bookie listed: silent", "bookie listed: takes nothing new", "bookie listed: other incarnation",
    "takeover that waited", "owner probed: refused", "owner probed: there", "log lost",
)  # fmt: skip
PROXIES: Final = (
    "proxy: redirects", "proxy: unreachable", "proxy: pauses", "proxy: retries", "proxy: repeats",
    "session cut short", "session of appends ended", "session of appends: log_unavailable",
)  # fmt: skip
LIFE: Final = (
    "log node trimmed", "segments given up", "segment node removed", "ledgers dropped",
    "leftovers purged", "reader skips what is gone", "log ended", "exact append: log_ended",
)  # fmt: skip

READERS: Final = (
    "position: head", "position: tail", "position: seq", "position: dlsn", "position: lsn",
    "position: time", "read to the tail", "poll to the tail", "read proxy died",
    "subscriber moved", "subscriber has it all", "subscriber: data_unavailable",
    "subscriber: metadata_unavailable",
)  # fmt: skip

ARCHIVE: Final = (
    "segment archived: applied", "segment archived: refused", "segment archived: unknown",
    "cold copy rechecked: applied", "cold copy taken back: applied",
    "cold copy taken back: refused", "only copy found broken", "archiver killed",
    "hot copies released", "cold read", "cold store unreachable",
)  # fmt: skip

METADATA_LOGS: Final = (
    "metadata log made", "metadata epoch claimed", "metadata epoch closed", "metadata move",
    "segment node moved", "metadata log rewritten", "metadata log trimmed",
    "metadata commit: conflict", "metadata commit: unknown", "records of a move that never came",
    f"trap: {RECORDED}", "keeper ended between record and move", "moved segment listed",
)  # fmt: skip

REPAIR: Final = (
    # A drain to call back has to be under way: that may be missed.
    *(f"fault: {fault}" for fault in REPAIR_FAULTS if fault != "drain cancelled"),
    "auditor elected", "copies swapped (CLOSED)", "copies swapped (OPEN)",
    "fragment proved (CLOSED)", "fragment proved (OPEN)", "entries pulled", "everything repaired",
    "restored in the middle", "repair of what is quiet", "change raced a swap", "drain: done",
    "duty serving → draining", "duty leaving → drained", "bookie joined", "bookie began anew",
    "listing came back empty", "roll asked by repair", "start_rebalance: done",
)  # fmt: skip

GOSSIP: Final = (
    *(f"fault: {fault}" for fault in GOSSIP_FAULTS),
    "member away", "member away that is awake", "member away no more", "suspicion refuted",
    "log taken by a hint", "owner by a hint is left to its session",
    "proxy passes a sequencer over", "proxy: ended_tries",
)  # fmt: skip

HARD_TIMES: Final = (
    "last commit damaged", "seal damaged", "disk is read_only", "disk is full", "disk is writable",
    "add refused by a full disk", "seal on a full disk", "full disk read",
    *(f"asleep beyond a session: {kind}" for kind in KINDS.values()), "asleep beyond retention",
    "later field kept",
)  # fmt: skip

FLEXIBLE: Final = (
    "copies swapped (flexible)", "row added (flexible)", "segment proved (flexible)", "check R26",
)  # fmt: skip
"""What a sweep of flexible logs has to meet besides."""

REQUIRED: Final = (
    *(f"fault: {fault}" for fault in (*FAULTS, *RARE_FAULTS)),
    "no quorum to sync with",
    *(f"trap: {transition}" for transition in TRANSITIONS),
    *(f"log {step}" for step in LOG_STEPS),
    *(f"writer {step}" for step in WRITER_STEPS),
    *(f"recovery {step}" for step in RECOVERY_STEPS),
    *EXACTLY_ONCE, *WISHES, *PROXIES, *OWNERSHIP, *LIFE, *READERS, *ARCHIVE, *METADATA_LOGS,
    *REPAIR, *GOSSIP, *HARD_TIMES,
    "segment new → OPEN", "segment OPEN → IN_RECOVERY", "segment IN_RECOVERY → CLOSED",
    "segment OPEN → CLOSED", "segment with holes", "gap reported", "ensemble change",
    "entries written back", "member suspended",
    "member resumed", "orphan found", "recovery overtaken", "stopped in peace",
    "settling", "compaction", "entries settled", "crash within upkeep", "upkeep failed",
    "settled damage", "index rebuilt", "group commit", "shared frame", "journal mark",
    "journal poisoned", "crash within a commit", "entry damaged on the way",
    "torn write", "torn tail", "tail secured", "damage found", "clean start", "unreadable entry",
    "cut from a seal", "sealed by a read", "add refused after a read",
    "segment proof asked", "segment proved open", "zombie add refused",
    "append yielded", "append uncertain", "append failed", "owed noted", "long poll over",
    "long poll waits", "read cancelled", "poll no_entry", "poll timeout", "read unknown",
    "read wrong_incarnation", "request lost", "answer lost", "request doubled", "late answer",
    "message slow", "message clogged", "request cut off", "answer cut off", "call timed out",
    "unreachable", "session expired", "session reconnected", "stale read",
    "commit unknown, applied", "commit unknown, applied late", "commit unknown, never applied",
    "commit conflict", "outcome applied", "outcome conflict", "outcome unknown",
    "outcome unavailable", "metadata read failed", "truncation: True", "truncation: False",
    "truncation: redirected", "truncation: log_unavailable",
    "tail: sure", "tail: not sure", "tail: data_unavailable", "tail: read to",
)  # fmt: skip
"""Counters that may not be 0 after a sweep."""


def main() -> int:
    """Play what the arguments ask for."""
    options = _parse()
    if options.seed is not None:
        result = run_seed(options.seed, with_trace=options.trace, copysets=options.copysets)
        sys.stdout.write(format_result(result))
        return 1 if result.violation else 0
    began_s = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    results = []
    for result in play_seeds(seeds, options.jobs, copysets=options.copysets):
        results.append(result)
        if result.violation:
            sys.stdout.write(format_result(result))
            sys.stdout.flush()
    took_s = time.monotonic() - began_s
    sys.stdout.write(format_summary(results, took_s, is_long=not options.quiet))
    is_drawn = options.copysets == DRAWN
    is_swept = len(results) >= GAP_SEEDS_MIN and (is_drawn or options.copysets == "striped")
    gaps = find_gaps(results, is_drawn=is_drawn) if is_swept else []
    for gap in gaps:
        sys.stdout.write(f"never happened: {gap}\n")
    if options.choose is not None:
        required = _list_required(is_drawn=is_drawn)
        for chosen in choose_seeds(results, options.choose, required):
            sys.stdout.write(f"choose {chosen.seed}: {', '.join(chosen.names)}\n")
    return 1 if gaps or any(result.violation for result in results) else 0


def play_seeds(
    seeds: Iterable[int],
    jobs: int,
    *,
    duration_us: int | None = None,
    copysets: str = "striped",
) -> Iterator[Result]:
    """Play seeds, `jobs` at once; results come in the order of the seeds.

    Each has a process of its own, forked where the simulator is loaded already: what a run leaves
    (20 MiB in cycles) ends with it, and nothing has to look for it. It is in a session of its own:
    Linux shares processors out by session, and it is to take no more than one server of a test.
    """
    play = partial(play_uncollected, duration_us=duration_us, copysets=copysets)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "tests.sim.run"])
    with context.Pool(jobs, initializer=os.setsid, maxtasksperchild=1) as pool:
        yield from pool.imap(play, seeds, chunksize=1)


def sum_counts(results: Iterable[Result]) -> Counter[str]:
    """What happened in all of them together."""
    total: Counter[str] = Counter()
    for result in results:
        total.update(result.counts)
    return total


def find_gaps(results: Iterable[Result], *, is_drawn: bool) -> list[str]:
    """What had to happen and did not; `is_drawn`: some logs were flexible."""
    total = sum_counts(results)
    return [name for name in _list_required(is_drawn=is_drawn) if total[name] == 0]


def _list_required(*, is_drawn: bool) -> tuple[str, ...]:
    return (*REQUIRED, *FLEXIBLE) if is_drawn else REQUIRED


def format_result(result: Result) -> str:
    """A run for people: the story is all of it, or the last events of a failure."""
    head = f"seed {result.seed}  digest {result.digest}\n  options {result.options.format()}\n"
    story = "".join(f"  {line}\n" for line in result.story)
    fate = result.violation or "ok"
    return f"{head}{story}seed {result.seed}: {fate}\n"


def format_summary(results: list[Result], took_s: float, *, is_long: bool) -> str:
    """Counts of all runs and how fast they were."""
    total = sum_counts(results)
    lines = [f"{name:<40} {total[name]:>12}" for name in sorted(total)] if is_long else []
    simulated_s = sum(result.simulated_us for result in results) / SECOND
    failed = [result.seed for result in results if result.violation]
    lines += [
        f"{len(results)} seeds, {len(failed)} failed {failed[:20]}",
        f"{took_s:.1f} s, {len(results) / took_s:.2f} seeds/s, "
        f"{simulated_s / took_s:.0f} simulated seconds a second, "
        f"{sum(result.event_count for result in results) / took_s:.0f} events a second",
    ]
    return "".join(f"{line}\n" for line in lines)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many to play")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="play only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--copysets", choices=LOG_KINDS, default=DRAWN, help="kinds of logs")
    parser.add_argument("--choose", type=int, metavar="K", help="choose seeds besides the first K")
    parser.add_argument("--quiet", action="store_true", help="no counters")
    options = parser.parse_args()
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs are at least 1")
    if options.choose is not None and options.choose < 0:
        parser.error("--choose is at least 0")
    return options


if __name__ == "__main__":
    sys.exit(main())
