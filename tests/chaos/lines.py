"""Lines of histories that the tests of judges and watchers are made of.

`append`, `read`, `tail` make a line each; times are seconds. `A0`, `A1`, `B0` and `BATCHES` are a
small history that is good. Used by `test_judge`, `test_delivery`, `test_waiters`, `test_watch`.
"""

from __future__ import annotations

from typing import Any

from tests.chaos.history import Line, hash_body

LOG = "log"


def append(  # noqa: PLR0917 - a line of a history
    writer: str, seq: int, t0: float, t1: float, start: int | None, n: int = 1, **more: Any
) -> Line:
    """An append; acknowledged at `start` (its DLSN is entry `start` unless told), or else."""
    line: Line = {
        "t0_ns": int(t0 * 1e9), "t1_ns": int(t1 * 1e9), "op": "append", "proc": writer,
        "log": LOG, "producer": writer, "seq": seq, "n": n, "hash": hashes(writer, seq, n),
        "outcome": "ok",
    }  # fmt: skip
    if start is not None:
        line |= {"start": start, "end": start + n, "dlsn": f"e1n{start}s0"}
    return line | more


def hashes(writer: str, seq: int, n: int = 1) -> list[int]:
    """The names of an append's bodies."""
    return [hash_body(f"{writer}/{seq}/{place}".encode()) for place in range(n)]


def read(
    proc: str, t0: float, t1: float, *batches: tuple[str, int, list[int]], **more: Any
) -> Line:
    """What a reader got: (DLSN, sequence number, hashes) each; to the tail unless told."""
    start = batches[0][1] if batches else 0
    end = batches[-1][1] + len(batches[-1][2]) if batches else 0
    line: Line = {
        "t0_ns": int(t0 * 1e9), "t1_ns": int(t1 * 1e9), "op": "read", "proc": proc, "log": LOG,
        "from": None, "batches": [list(batch) for batch in batches], "tail": True,
        "start": start, "end": end, "n": end - start, "outcome": "ok",
    }  # fmt: skip
    return line | more


def tail(t0: float, t1: float, end: int) -> Line:
    """An answer to the question where the log ends."""
    return {
        "t0_ns": int(t0 * 1e9), "t1_ns": int(t1 * 1e9), "op": "tail", "proc": "r", "log": LOG,
        "end": end, "n": 0, "outcome": "ok",
    }  # fmt: skip


A0, A1, B0 = append("a", 0, 1, 2, 0), append("a", 1, 3, 4, 1), append("b", 0, 1, 4, 2)
BATCHES = (
    ("e1n0s0", 0, hashes("a", 0)),
    ("e1n1s0", 1, hashes("a", 1)),
    ("e1n2s0", 2, hashes("b", 0)),
)
UNSURE = append("c", 0, 5, 6, None, 2, outcome="info", code="append_uncertain")
REFUSED = append("c", 0, 5, 6, None, outcome="fail", code="log_unavailable")
