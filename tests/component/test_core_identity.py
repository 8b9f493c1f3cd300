"""As whom the core library calls: what a folder has to hold, and what its role may open.

With bookies and ZooKeeper that ask: `tests/process/test_secured_core`.
Source: docs/protocol/identity.md "Who may call what inside", docs/sdk.md.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duramen.client.core import CoreClient, OwnedLog
from duramen.errors import DuramenError
from tests.component.issuing_world import IssuingWorld


def connect(folder: Path) -> CoreClient:
    return CoreClient("127.0.0.1:1", identity=folder)


def test_a_process_is_a_writer_or_a_reader_and_nobody_else(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)
    for folder in (world.server, world.caller, world.issue("client", "ann")):
        with pytest.raises(DuramenError, match="ca issue CA corewriter NAME") as caught:
            connect(folder)
        assert (caught.value.code, caught.value.field) == ("invalid_argument", "identity")
    with pytest.raises(DuramenError, match=r"tls\.key is missing"):
        connect(tmp_path / "none")


def test_a_reader_owns_nothing_and_says_so_before_it_asks_anybody(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)

    async def scenario() -> None:
        writer = connect(world.issue("corewriter", "app"))
        assert isinstance(writer.open_log("shop", "orders"), OwnedLog)
        reader = connect(world.issue("corereader", "view"))
        reader.log("shop", "orders")
        with pytest.raises(DuramenError, match="view reads logs and owns none") as caught:
            reader.open_log("shop", "orders")
        assert caught.value.code == "forbidden"

    asyncio.run(scenario())
