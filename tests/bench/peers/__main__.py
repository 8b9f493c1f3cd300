"""`python -m tests.bench.peers SCRIPTS`, which is `make bench-peers SCRIPTS=<folder>`.

Plays real peers and this product in turns, round by round, so that a slow hour of the machine hits
all of them, and prints one table of ratios with the CPU of servers and clients a record. The
folder has the peers' scripts (`scripts`); they come from elsewhere, and without them it says so and
measures nothing.

Exit codes: 0 measured, 1 void or nothing left to be compared, 2 usage (also: no such scripts).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.bench.cluster import BenchError, LocalCluster
from tests.bench.ending import bounded
from tests.bench.machine import describe_machine
from tests.bench.peers.own import measure_own
from tests.bench.peers.rows import OWN, Row, read_rows, sift
from tests.bench.peers.scripts import PeerScripts
from tests.bench.peers.table import compare, format_comparisons

PEERS: Final = ("bookkeeper", "kafka", "nats", "redis")
_TURN_S: Final = 1_500
"""A hang bound of one product's turn; the install of a peer has the same."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print."""
    options = _parse(arguments)
    if not options.scripts:
        _say("bench-peers: SCRIPTS names no folder of scripts that start peers: nothing measured")
        return 2
    options.scratch.mkdir(parents=True, exist_ok=True)
    scripts = PeerScripts(Path(options.scripts), options.scratch)
    absence = scripts.explain_absence(options.peers)
    if absence:
        _say(f"bench-peers: {absence}: nothing measured")
        return 2
    rows: list[Row] = []
    fault = ""
    folder = Path(tempfile.mkdtemp(prefix="peers-", dir=options.scratch)).absolute()
    try:
        with bounded(_TURN_S * (len(options.peers) + 1) * (options.rounds + 1)):
            for peer in options.peers:
                _say(f"{peer}: built below {options.scratch}, unless it is there")
                scripts.install(peer)
            for number in range(1, options.rounds + 1):
                for name in (OWN, *options.peers):
                    _say(f"round {number} of {options.rounds}: {name}")
                    rows.extend(_play(name, options.seconds, scripts, folder / f"{name}-{number}"))
    except BenchError as error:
        fault = str(error)
    finally:
        shutil.rmtree(folder)
    return _report(options, rows, fault)


def _play(name: str, seconds: int, scripts: PeerScripts, place: Path) -> Iterator[Row]:
    """One turn of one product; `place` is a path for its rows or its data."""
    if name == OWN:
        with scripts.alone(), LocalCluster(place) as cluster:
            yield from measure_own(cluster, seconds)
        shutil.rmtree(place)
    else:
        scripts.play(name, seconds, place)
        yield from read_rows(place)


def _report(options: argparse.Namespace, rows: Sequence[Row], fault: str) -> int:
    kept, doubts = sift(rows)
    found = compare(kept)
    machine = describe_machine(options.scratch.absolute())
    if found:
        sys.stdout.write(
            f"medians of {options.rounds} rounds, E = Qw = 3, Qa = 2, fsync on, clients and "
            f"servers on one machine: {machine['cores']} cores, {machine['file_system']}, Python "
            f"{machine['python']}; ratio: ours to theirs\n\n{format_comparisons(found)}\n"
        )
    for doubt in doubts:
        sys.stdout.write(f"set aside: {doubt}\n")
    if options.json is not None:
        document = {
            "machine": machine,
            "rows": [row.to_json() for row in rows],
            "comparisons": [one.to_json() for one in found],
            "fault": fault or None,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if fault:
        _say(f"void: {fault}")
    return int(bool(fault) or not any(one.peers for one in found))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-peers SCRIPTS=<folder>", description=__doc__.partition("\n\n")[2]
    )
    parser.add_argument("scripts", nargs="?", default="", help="folder of the peers' scripts")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each product (5)")
    parser.add_argument("--seconds", type=int, default=8, help="of each workload (8)")
    parser.add_argument(
        "--peer", dest="peers", action="append", choices=PEERS, help="this one (may be repeated)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows there, too")
    parser.add_argument(
        "--scratch", type=Path, default=Path("build/peers"), help="for what is built, and all data"
    )
    options = parser.parse_args(arguments)
    options.peers = options.peers or list(PEERS)
    if options.rounds < 1 or options.seconds < 1:
        parser.error("--rounds and --seconds are at least 1")
    return options


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
