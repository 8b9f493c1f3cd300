"""Cold stores of every kind, empty, for the port's contract tests.

A bench opens stores on one place, a store that nobody can reach, and says what of the contract its
kind leaves to somebody else. Real servers are started once per run by the fixtures that own them.

Called by test_cold_store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import httpx
import pytest

from duramen.runtime.cold import ColdStore, open_cold_store
from duramen.runtime.cold.memory import MemoryColdStore
from tests.cold_servers import ObjectServer


class ColdBench(Protocol):
    """What a contract test may do beside using the port."""

    @property
    def url(self) -> str | None:
        """What another process opens; None where there is none."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What that process needs beside it."""

    @property
    def drops_unfinished(self) -> bool:
        """Whether the store itself frees what killed writers left."""

    def open_store(self) -> ColdStore: ...
    def open_store_that_is_down(self) -> ColdStore: ...
    def open_store_without_root(self) -> ColdStore: ...


OpenColdBench = Callable[[], ColdBench]


class MemoryColdBench:
    url = None
    drops_unfinished = True

    def __init__(self) -> None:
        self.environment: Mapping[str, str] = {}
        self._store = MemoryColdStore()

    def open_store(self) -> ColdStore:
        return self._store

    def open_store_that_is_down(self) -> ColdStore:
        store = MemoryColdStore()
        store.is_down = True
        return store

    def open_store_without_root(self) -> ColdStore:
        return self.open_store_that_is_down()


class FolderColdBench:
    drops_unfinished = True

    def __init__(self, folder: Path) -> None:
        self._root = folder / "cold"
        self._root.mkdir()
        self.url = self._root.as_uri()
        self.environment: Mapping[str, str] = {}

    def open_store(self) -> ColdStore:
        return open_cold_store(self.url)

    def open_store_that_is_down(self) -> ColdStore:
        root = self._root.parent / "a file"
        root.touch()
        return open_cold_store(root.as_uri())

    def open_store_without_root(self) -> ColdStore:
        return open_cold_store((self._root.parent / "absent").as_uri())


class S3ColdBench:
    """A prefix of its own in one bucket; the store takes its server from the environment."""

    drops_unfinished = False

    def __init__(self, server: ObjectServer) -> None:
        self.url = server.url(f"tests/{uuid4().hex}")
        self.environment = server.environment

    def open_store(self) -> ColdStore:
        return open_cold_store(self.url)

    def open_store_that_is_down(self) -> ColdStore:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
            return self.open_store()

    def open_store_without_root(self) -> ColdStore:
        return open_cold_store("s3://no-such-bucket/tests")


class HdfsColdBench:
    """A directory of its own."""

    drops_unfinished = True

    def __init__(self, address: str) -> None:
        path = f"/tests/{uuid4().hex}"
        made = httpx.put(f"http://{address}/webhdfs/v1{path}", params={"op": "MKDIRS"})
        assert made.json() == {"boolean": True}
        self.url = f"webhdfs://duramen@{address}{path}"
        self.environment: Mapping[str, str] = {}

    def open_store(self) -> ColdStore:
        return open_cold_store(self.url)

    def open_store_that_is_down(self) -> ColdStore:
        return open_cold_store("hdfs://127.0.0.1:1/tests")

    def open_store_without_root(self) -> ColdStore:
        return open_cold_store(f"{self.url}-absent")
