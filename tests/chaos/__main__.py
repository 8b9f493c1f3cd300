"""`python -m tests.chaos`, which is `make chaos MINUTES=n [SEED=s]`: one long run.

Of which kind the logs are is drawn (`tests.combinations`), told, and repeated by its variable. What
happens goes to stderr as it happens, the summary to stdout, also as JSON with --json FILE.

Exit codes: 0 all held; 1 an invariant was broken (void or not), the cluster did not come back, or
two runs in a row met too few appends or reads; 2 usage; 4 void, three times; 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import sys
from dataclasses import replace
from pathlib import Path

import uvloop

from tests.chaos.layout import FLAT, REGIONS
from tests.chaos.run import ChaosOptions, RunError, end_on_signals
from tests.chaos.schedule import ALL_KINDS, list_kinds
from tests.chaos.trials import TRIES, run_until_valid
from tests.combinations import FIRST, OTHERS, VARIABLE, choose_combinations
from tests.ports import keep_ports_apart


def main() -> int:
    """Run, print, judge."""
    parser = _make_parser()
    arguments = parser.parse_args()
    if arguments.tries < 1:
        parser.error("--tries is at least 1")
    layout = REGIONS if arguments.regions else FLAT
    is_secure = arguments.security == "on"
    known = list_kinds(layout, is_long=True, turns=is_secure)
    if unknown := set(arguments.only) - set(known):
        kinds = ", ".join(known)
        parser.error(f"--only {', '.join(sorted(unknown))}: must be one of {kinds}")
    keep_ports_apart()
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    options = ChaosOptions(
        seed=seed,
        seconds=arguments.minutes * 60,
        layout=layout,
        logs=arguments.logs,
        writers=arguments.writers,
        readers=arguments.readers,
        think_ms=arguments.think_ms,
        has_producers=arguments.producers,
        truncates=arguments.truncate,
        has_waiters=arguments.waiters,
        only=tuple(arguments.only),
        expects_repaired=arguments.expect_repaired,
        is_secure=is_secure,
        turns=is_secure,
    )
    possible = [
        kind for kind in (FIRST, *OTHERS) if not arguments.producers or kind.ack_mode == "ordered"
    ]
    chosen = choose_combinations("chaos", possible)
    if not chosen:
        parser.error(f"--producers: not with {VARIABLE}={os.environ[VARIABLE]}")
    return max([_run_one(replace(options, combination=kind), arguments) for kind in chosen])


def _run_one(options: ChaosOptions, arguments: argparse.Namespace) -> int:
    """One run, or one for each void one; its exit code."""
    seed = options.seed
    _say(f"seed {seed}, {options.seconds:g} s, {VARIABLE}={options.combination}")
    try:
        return uvloop.run(_run(options, arguments))
    except RunError as error:
        _say(f"FAILED, seed {seed}: {error}")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        _say("interrupted")
        return 130


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, help="of the schedule of faults; default: a new one")
    parser.add_argument(
        "--regions", action="store_true", help="9 bookies in 3 regions of 3 racks, 3 of the others"
    )
    parser.add_argument(
        "--expect-repaired",
        action="store_true",
        help="in the end every entry has its Qw good copies in the right places",
    )
    parser.add_argument(
        "--security",
        choices=("on", "none"),
        default="on",
        help="identities and a token, which turn meanwhile, or nobody asks who calls",
    )
    parser.add_argument("--logs", type=int, default=10)
    parser.add_argument("--writers", type=int, default=14)
    parser.add_argument("--readers", type=int, default=6)
    parser.add_argument("--think-ms", type=int, default=40, help="between two appends of a writer")
    parser.add_argument(
        "--producers",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="idempotent producers, who retry until every answer is definite",
    )
    parser.add_argument(
        "--waiters",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="quiet logs with readers who wait, and a verdict on what they get when",
    )
    parser.add_argument("--truncate", action="store_true", help="truncate the logs meanwhile (T1)")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="KIND",
        help=f"one of: {', '.join(ALL_KINDS)}",
    )
    parser.add_argument("--tries", type=int, default=TRIES, help="runs at most, while each is void")
    parser.add_argument("--keep", action="store_true", help="keep histories and logs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the summary for machines")
    return parser


async def _run(options: ChaosOptions, arguments: argparse.Namespace) -> int:
    task = asyncio.current_task()
    assert task is not None
    end_on_signals(task)
    summary = await run_until_valid(
        options, tries=arguments.tries, keeps_folder=arguments.keep, say=_say
    )
    kind = str(options.combination)
    sys.stdout.write(f"seed {options.seed}, {summary.seconds:g} s, {kind}\n{summary.format()}\n")
    if arguments.json is not None:
        document = {"seed": options.seed, "combination": kind} | summary.to_json()
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if summary.violations:
        return 1
    return 4 if summary.void else 0


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
