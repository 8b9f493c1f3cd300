"""A client of server-sent events for tests: events one by one, with their ids.

Reads what the standard asks for and no more: `event`, `id`, `data`, `retry`. Used by the tests of
the read proxy's streams. Source: docs/protocol/read-answers.md.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx

EVENTS = "text/event-stream"


class Event(NamedTuple):
    kind: str
    id: str
    data: Any


@contextlib.asynccontextmanager
async def listen(
    http: httpx.AsyncClient, url: str, last_id: str | None = None
) -> AsyncIterator[AsyncIterator[Event]]:
    """The events of a stream; every id is kept as a browser keeps it."""
    headers = {"accept": EVENTS}
    if last_id is not None:
        headers["last-event-id"] = last_id
    async with http.stream("GET", url, headers=headers) as response:
        if response.status_code != 200:
            await response.aread()
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith(EVENTS)
        yield parse_events(response)


async def parse_events(response: httpx.Response) -> AsyncIterator[Event]:
    fields: dict[str, str] = {}
    last_id = ""
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        if "data" in fields:
            last_id = fields.get("id", last_id)
            yield Event(fields["event"], last_id, json.loads(fields["data"]))
        fields = {}


def bodies_of(events: list[Event]) -> list[str]:
    return [r["body"] for e in events if e.kind == "records" for r in e.data["records"]]
