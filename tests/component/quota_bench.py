"""What it costs a call that it counts for its client and its namespace: time, and what waits holds.

Run by hand: `python -m tests.component.quota_bench`.
Source: docs/protocol/limits.md "Cost".
"""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from duramen.config import ClientLimits
from duramen.core.rights.grants import parse_principal
from duramen.runtime.admission.call_rows import find_row
from duramen.runtime.admission.callers import CALL_KEY, AdmittedCall, ShownCredentials
from duramen.runtime.admission.quota_door import QuotaDoor
from duramen.runtime.credentials.principals import Bearer
from tests.component.door_world import FAR_S, World, opened
from tests.component.quota_world import APPEND, Limited, set_limits
from tests.pauses import look_again_soon

_CALL_COUNT: Final = 2_000
_ROUND_COUNT: Final = 30
"""The quickest one counts: others use the machine as well."""
_WAITING_COUNT: Final = 2_000


async def _serve(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"[]"})


async def _take(_message: Any) -> None:
    pass


async def _time_us(door: Any, scope: dict[str, Any]) -> float:
    rounds = []
    for _ in range(_ROUND_COUNT):
        began = time.perf_counter()
        for _ in range(_CALL_COUNT):
            await door(scope, _take, _take)
        rounds.append((time.perf_counter() - began) / _CALL_COUNT * 1e6)
    return min(rounds)


class _Waits:
    """An application whose calls all wait."""

    def __init__(self) -> None:
        self.count = 0
        self.may_end = asyncio.Event()

    async def __call__(self, *_: Any) -> None:
        self.count += 1
        await self.may_end.wait()


async def _weigh(door: Any, waits: _Waits, scope: dict[str, Any]) -> float:
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    tasks = [asyncio.create_task(door(scope, _take, _take)) for _ in range(_WAITING_COUNT)]
    while waits.count < _WAITING_COUNT:
        await look_again_soon()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    waits.may_end.set()
    await asyncio.gather(*tasks)
    return (after - before) / _WAITING_COUNT


async def _measure(world: World, name: str, method: str, call: AdmittedCall | None) -> None:
    limits = ClientLimits(calls_per_s=1_000_000_000)
    quotas = Limited(world.store, limits).quotas
    door = QuotaDoor(_serve, quotas)
    scope: dict[str, Any] = {
        "type": "http", "method": method, "path": APPEND, "headers": [(b"content-length", b"9")],
    }  # fmt: skip
    if call is not None:
        scope[CALL_KEY] = call
    bare_us, door_us = await _time_us(_serve, scope), await _time_us(door, scope)

    bare, inner = _Waits(), _Waits()
    more_bytes = await _weigh(QuotaDoor(inner, quotas), inner, scope)
    more_bytes -= await _weigh(bare, bare, scope)
    print(f"{name:28} {door_us - bare_us:5.2f} us a call, {more_bytes:5.0f} bytes while it waits")


async def _main(folder: Path) -> None:
    async with opened(folder) as world:
        # So that none of the calls below is refused.
        await set_limits(world.store, "shop", calls_per_s=1_000_000_000)
        for method in ("GET", "POST"):
            found = find_row(method, APPEND)
            bearer = Bearer(parse_principal("user:corp/own"), FAR_S)
            find_rights = world.admissions[0].find_rights
            call = AdmittedCall(bearer, ShownCredentials((), ()), found, 0.0, find_rights)
            await _measure(world, f"{method}, client and namespace", method, call)
            await _measure(world, f"{method}, namespace alone", method, None)


if __name__ == "__main__":
    with TemporaryDirectory() as made:
        asyncio.run(_main(Path(made)))
