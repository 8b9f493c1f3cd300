"""What it costs a call that a public port asks who calls: to find the row, the caller and the verb.

Run by hand: `python -m tests.component.admission_bench`.
Source: docs/protocol/rights.md "How a call is judged".
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from duramen.runtime.admission.call_rows import find_row
from duramen.runtime.admission.public_door import PublicDoor
from duramen.runtime.identity.header import NamedClient
from tests.component.admission_world import READ, Headers, as_user
from tests.component.audit_world import record_nowhere
from tests.component.door_world import FAR_S, GRANTS, World, list_known, opened

_CALL_COUNT: Final = 2_000
_ROUND_COUNT: Final = 30
"""The quickest one counts: others use the machine as well."""

_PATH: Final = "/v1/namespaces/shop/logs/orders/records"


async def _time_us(call: Callable[[], Awaitable[object]]) -> float:
    rounds = []
    for _ in range(_ROUND_COUNT):
        began = time.perf_counter()
        for _ in range(_CALL_COUNT):
            await call()
        rounds.append((time.perf_counter() - began) / _CALL_COUNT * 1e6)
    return min(rounds)


async def _measure(world: World, name: str, headers: Headers) -> None:
    port = world.ports[0]
    admission = world.admissions[0]
    pairs = [(n.encode(), v.encode()) for n, v in headers.items()]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": _PATH, "headers": pairs}

    async def nothing(*_: Any) -> Any:
        return None

    door = PublicDoor(nothing, admission, (), record_nowhere())
    whole_us = await _time_us(lambda: door(scope, nothing, nothing))
    call: Any = scope["duramen.call"]
    now = dt.datetime.now(dt.UTC)

    async def judge() -> bool:
        found: bool = call.find_rights().judge(call.found.row.verb, "shop", "orders")
        return found

    known_us = await _time_us(lambda: admission.identify(call.shown, now))
    judged_us = await _time_us(judge)
    assert call.bearer is not None, port.receiver
    print(f"{name:22} whole {whole_us:5.2f} us, who {known_us:5.2f}, verb {judged_us:5.2f}")


async def _main(folder: Path) -> None:
    async with opened(folder) as world:
        await world.callers.give(*GRANTS)
        port = world.ports[0]
        known = await list_known(world, port)

        async def find() -> object:
            return find_row("POST", _PATH)

        print(f"row {await _time_us(find):.2f} us")
        client = NamedClient("user:corp/own", (), FAR_S)
        for name, headers in {
            "API token": known["token"][0],
            "web token": as_user("own"),
            "identity": known["operator"][0],
            "forwarded": world.callers.identify(READ.role.value, READ.name, port.receiver, client),
        }.items():
            await _measure(world, name, headers)


if __name__ == "__main__":
    with TemporaryDirectory() as made:
        asyncio.run(_main(Path(made)))
