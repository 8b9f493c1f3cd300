"""What `duramen run` leaves for clients: a token whose node is there, kept in time, and for curl.

Source: docs/protocol/credentials.md "How clients show it".
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from duramen.client.credentials.local_cluster import (
    CURL_FILE,
    OPERATOR_FOLDER,
    TOKEN_FILE,
    WRITER_FOLDER,
    find_local_credential,
    find_local_writer,
    format_curl_config,
    keep_local_access,
)
from duramen.cluster import supervisor
from duramen.cluster.supervisor import ClusterError, ClusterEvent, ClusterOptions, Supervisor
from duramen.core.rights.verbs import Verb
from duramen.runtime.credentials.access_tokens.kept_token import LIFE_S, RENEWED_BEFORE_S
from duramen.runtime.credentials.access_tokens.token_table import TokenTable
from duramen.runtime.credentials.access_tokens.token_text import take_token_apart
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.stores.metadata_store import Unavailable
from duramen.wire.metadata_json import Paths
from duramen.wire.nodes.access_tokens import read_access_token
from tests.component.asking_proxy import asking_proxy
from tests.component.issuing_world import IssuingWorld
from tests.pauses import let_pass
from tests.waiting import wait_for

NOW_S = 1_800_000_000
PATHS = Paths("local")


def run(test: Callable[[MemoryStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = MemoryStore(MemoryTree())
        await store.start()
        await test(store)
        await store.close()

    uvloop.run(main())


def read_text(folder: Path) -> str:
    return (folder / TOKEN_FILE).read_text().strip()


def test_the_token_does_everything_and_is_believed(tmp_path: Path) -> None:
    async def main(store: MemoryStore) -> None:
        await keep_local_access(store, PATHS, tmp_path, NOW_S)
        text = read_text(tmp_path)
        for name in (TOKEN_FILE, CURL_FILE):
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        assert f'header = "Authorization: Bearer {text}"' in (tmp_path / CURL_FILE).read_text()
        table = TokenTable(store, PATHS)
        await table.start()
        assert str(table.find(text, NOW_S).principal) == f"token:{take_token_apart(text).token_id}"
        (token,) = table.list_tokens()
        assert [(str(one.on), one.verbs) for one in token.scopes] == [("*", frozenset(Verb))]
        assert (str(token.issued_by), token.expires_s) == ("service:operator/local", NOW_S + LIFE_S)
        await table.stop()
        source = find_local_credential(tmp_path).token
        assert source is not None and await source.read() == text

    run(main)


def test_it_is_used_again_while_it_counts_and_made_anew_else(tmp_path: Path) -> None:
    async def main(store: MemoryStore) -> None:
        await keep_local_access(store, PATHS, tmp_path, NOW_S)
        first = read_text(tmp_path)
        late_s = NOW_S + LIFE_S - RENEWED_BEFORE_S
        await keep_local_access(store, PATHS, tmp_path, late_s - 1)
        assert read_text(tmp_path) == first
        await keep_local_access(store, PATHS, tmp_path, late_s)
        second = read_text(tmp_path)
        assert second != first, "a month is left"

        path = PATHS.access_token(take_token_apart(second).token_id)
        found = await store.get(path)
        assert found is not None
        await store.delete(path, version=found.version)
        await keep_local_access(store, PATHS, tmp_path, NOW_S)
        third = read_text(tmp_path)
        assert third != second, "it was revoked"

        path = PATHS.access_token(take_token_apart(third).token_id)
        await store.set(path, b"{}", version=0)
        await keep_local_access(store, PATHS, tmp_path, NOW_S)
        assert read_text(tmp_path) != third, "its node cannot be read"

        (tmp_path / TOKEN_FILE).write_text(f"dur1_{'a' * 16}_{'b' * 51}a\n")
        await keep_local_access(store, PATHS, tmp_path, NOW_S)
        fifth = read_text(tmp_path)
        assert "bbbb" not in fifth, "nobody issued it"
        (tmp_path / TOKEN_FILE).chmod(0o640)
        await keep_local_access(store, PATHS, tmp_path, NOW_S)
        fifth, before = read_text(tmp_path), fifth
        assert fifth != before, "others could read it"
        (tmp_path / TOKEN_FILE).write_text("half a tok")
        await keep_local_access(store, PATHS, tmp_path, NOW_S)
        assert take_token_apart(read_text(tmp_path)).text != fifth

    run(main)


def test_another_text_of_the_same_id_is_not_used(tmp_path: Path) -> None:
    async def main(store: MemoryStore) -> None:
        await keep_local_access(store, PATHS, tmp_path, NOW_S)
        token_id = take_token_apart(read_text(tmp_path)).token_id
        (tmp_path / TOKEN_FILE).write_text(f"dur1_{token_id}_{'b' * 51}a\n")
        await keep_local_access(store, PATHS, tmp_path, NOW_S)
        assert take_token_apart(read_text(tmp_path)).token_id != token_id

    run(main)


def test_no_file_has_a_text_whose_node_is_not_there(tmp_path: Path) -> None:
    async def main(store: MemoryStore) -> None:
        await store.close()
        with pytest.raises(Unavailable):
            await keep_local_access(store, PATHS, tmp_path, NOW_S)
        assert list(tmp_path.iterdir()) == []

    run(main)


def test_the_nodes_name_says_nothing_of_the_text(tmp_path: Path) -> None:
    async def main(store: MemoryStore) -> None:
        await keep_local_access(store, PATHS, tmp_path, NOW_S)
        shown = take_token_apart(read_text(tmp_path))
        found = await store.get(PATHS.access_token(shown.token_id))
        assert found is not None and shown.text.rpartition("_")[2].encode() not in found.data
        assert read_access_token(found.data, shown.token_id).secret_hash == shown.hash

    run(main)


def test_a_token_that_cannot_be_kept_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start it is a start that failed; later what there is lives on."""
    faults = [Unavailable("away"), OSError(28, "No space left on device")]
    events: list[ClusterEvent] = []
    running = Supervisor(ClusterOptions(tmp_path, security="on"), events.append)
    tried: list[int] = []

    async def keep(_: Supervisor) -> None:
        tried.append(len(tried))
        if len(tried) <= len(faults):
            raise faults[len(tried) - 1]

    monkeypatch.setattr(Supervisor, "_keep_access", keep)
    monkeypatch.setattr(supervisor, "ACCESS_LOOK_S", 0.01)

    async def main(_: MemoryStore) -> None:
        with pytest.raises(ClusterError, match="no token for the command line"):
            await running._begin_access(time.monotonic() + 60)
        with pytest.raises(ClusterError, match="No space left"):
            await running._begin_access(time.monotonic() + 60)
        await running._begin_access(time.monotonic() + 60)
        faults.extend([Unavailable("away")] * 3)
        tried.clear()
        await wait_for(lambda: len(tried) > len(faults), 20, "another try")
        assert [event.kind for event in events] == ["fault"] * len(faults)
        assert "the token of this run" in str(events[0].detail)
        await running.stop()
        count = len(tried)
        await let_pass(0.05, what="nothing is tried any more")
        assert len(tried) == count, "nobody tries any more"

    run(main)


def test_the_core_library_finds_its_identity_by_the_clusters_zookeeper(tmp_path: Path) -> None:
    file, writer = tmp_path / "cluster.json", tmp_path / WRITER_FOLDER
    assert find_local_writer("zk:1", tmp_path) is None
    for content in ("", "[]", "{}", '{"zookeeper": "zk:2"}'):
        file.write_text(content)
        writer.mkdir(parents=True, exist_ok=True)
        assert find_local_writer("zk:1", tmp_path) is None, content
    file.write_text('{"zookeeper": "zk:1"}')
    assert find_local_writer("zk:1", tmp_path) == writer
    writer.rmdir()
    assert find_local_writer("zk:1", tmp_path) is None, "it asks nobody"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_shows_what_the_file_has(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path / 'a "b" \\n')
    shutil.copytree(world.issue("operator", "operator"), tmp_path / OPERATOR_FOLDER, symlinks=True)

    async def ask(url: str) -> str:
        process = await asyncio.create_subprocess_exec(
            "curl", "-sS", "-K", tmp_path / CURL_FILE, f"{url}/v1/namespaces",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        said, _ = await process.communicate()
        return said.decode()

    async def main(store: MemoryStore) -> None:
        await keep_local_access(store, PATHS, tmp_path, NOW_S)
        async with asking_proxy() as proxy:
            proxy.believed = {read_text(tmp_path)}
            assert '"namespaces"' in await ask(proxy.url)
        async with asking_proxy(world.server, asks_certificate=True) as proxy:
            assert '"namespaces"' in await ask(proxy.url)
            odd = format_curl_config(None, world.folder / "operator", None)
            (tmp_path / CURL_FILE).write_bytes(odd)
            assert '"namespaces"' in await ask(proxy.url), "a name with quotes and backslashes"

    run(main)
