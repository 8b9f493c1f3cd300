"""What the admin port of every service tells of itself: statistics, options, probes.

The application is the product's; the service behind it is made up. What services count has tests
where it is counted. Source: docs/protocol/admin.md "Every service".
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient

from duramen.runtime.admin import make_admin_app
from duramen.runtime.role import ServiceOptions

OPTIONS = ServiceOptions(
    "bookie", "c", "\u00fc", "127.0.0.1", 1, 2, "zk:1", "r", "k", "none", 4.0, Path("/data"),
    ledger_dirs=(Path("/a"), Path("/b")), weight=0.5, cors_origins=("http://x",),
)  # fmt: skip

STATISTICS: dict[str, Any] = {
    "later": {"count": 3, "ratio": 0.25, "of": [1, None, {"name": "\u00fc", "is_on": True}]},
    "by_part": {"b": 1, "a": 2},
    "cold": None,
    "count": 0,
}


class Service:
    """Counts what it is told to."""

    def add_admin_routes(self, app: FastAPI) -> None:
        """It has none of its own."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def is_ready(self) -> bool:
        return False

    def statistics(self) -> dict[str, Any]:
        return STATISTICS


def test_statistics_and_options_are_told_byte_for_byte() -> None:
    async def scenario() -> None:
        app = make_admin_app(Service(), OPTIONS, lambda: None)
        async with AsyncClient(transport=ASGITransport(app), base_url="http://127.0.0.1") as admin:
            answer = await admin.get("/v1/statistics")
            assert answer.content == encode_value(STATISTICS)
            answer = await admin.get("/v1/config")
            told = dataclasses.asdict(OPTIONS)
            told["client_limits"] = OPTIONS.client_limits.model_dump(mode="json")
            assert answer.content == encode_value(told)
            document = (await admin.get("/openapi.json")).json()
        options = document["components"]["schemas"]["ServiceOptions"]["properties"]
        assert list(options) == [field.name for field in dataclasses.fields(OPTIONS)]

    asyncio.run(scenario())


def test_a_service_that_does_not_serve_its_role_is_alive() -> None:
    async def scenario() -> None:
        app = make_admin_app(Service(), OPTIONS, lambda: None)
        async with AsyncClient(transport=ASGITransport(app), base_url="http://127.0.0.1") as admin:
            told = [await admin.get(path) for path in ("/healthz", "/readyz")]
        assert [answer.status_code for answer in told] == [200, 503]
        assert [answer.content for answer in told] == [b'{"status":"ok"}', b'{"ready":false}']

    asyncio.run(scenario())


def encode_value(document: object) -> bytes:
    spelled = json.dumps(document, ensure_ascii=False, separators=(",", ":"), default=str)
    return spelled.encode()
