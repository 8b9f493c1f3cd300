"""Keys of a bucket, identities, tokens and records in jobs on Spark: what shows none of them.

The keys of the cold store lie in a file, as docs/cold-store.md says, a job archives into a bucket
under an identity, and queries read and write as a client with a token. Event logs, pages, output,
executors' logs, pickles, command lines and environments are searched, and what is said where a key
or a token is not believed. Source: docs/security.md, docs/archive.md, docs/spark.md.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from duramen.cli.main import main
from duramen.client.credentials.local_cluster import TOKEN_FILE
from duramen.runtime.credentials.access_tokens.token_text import make_token
from tests.cold_servers import Missing, ObjectServer, running_s3
from tests.process.cluster import LocalCluster, create_log, run, running_cluster
from tests.process.copies import close_segment
from tests.process.secret_places import (
    Asked,
    ask_admin_ports,
    read_files,
    read_processes,
    search,
)
from tests.process.times import HANG_S
from tests.requirements import leave_out
from tests.spark.secret_queries import LOG, REFUSED
from tests.spark.watched_jobs import WatchedSpark

pytestmark = [
    pytest.mark.process,
    pytest.mark.zookeeper,
    pytest.mark.night,  # 70 to 110 s of CPU: two Sparks, each with an executor
    pytest.mark.timeout(1200),  # the first run builds a server
]

KEYS_VARIABLE: Final = "AWS_SHARED_CREDENTIALS_FILE"
MARKED: Final = {"event log", "page", "cmdline", "environ", "executor"}
"""Where Spark shows what is among its settings."""


class Keys(NamedTuple):
    """A file of keys, and what is in it."""

    file: Path
    values: dict[str, bytes]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """A bucket; processes find all of it by the environment, but for the keys."""
    (tmp_path / "server").mkdir()
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(running_s3(tmp_path / "server"))
        except Missing as missing:
            leave_out(missing.need, missing.detail)
        for name, value in found.environment.items():
            if "_KEY" not in name:
                monkeypatch.setenv(name, value)
        yield found


def write_keys(file: Path, environment: Mapping[str, str]) -> Keys:
    found = {name: environment[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    file.touch(mode=0o600)
    lines = "".join(f"{name.lower()} = {key}\n" for name, key in found.items())
    file.write_text(f"[default]\n{lines}")
    return Keys(file, {f"{name} of {file.name}": key.encode() for name, key in found.items()})


def write_tokens(cluster: LocalCluster, folder: Path) -> dict[str, bytes]:
    """Files of tokens: one that is believed, one that nobody knows, one that is none."""
    folder.mkdir()
    texts = {
        "good": (cluster.folder / TOKEN_FILE).read_text().strip(),
        "unknown": make_token().text,
        "malformed": make_token().text,
    }
    for name, text in texts.items():
        (folder / name).write_text(text + (" and more\n" if name == "malformed" else "\n"))
    return {f"token {name}": text.rpartition("_")[2].encode() for name, text in texts.items()}


def read_key_lines(folder: Path) -> dict[str, bytes]:
    """A line of each identity's key."""
    found = {}
    for path in folder.rglob("*.key"):
        lines = re.findall(r"^[A-Za-z0-9+/=]{40,}$", path.read_text(), re.MULTILINE)
        found[f"{path.parent.name}/{path.name}"] = lines[1].encode()
    return found


def cut_key(folder: Path, copy: Path) -> Path:
    """An identity whose key is half a key."""
    shutil.copytree(folder, copy)
    text = (folder / "tls.key").read_text()
    (copy / "tls.key").write_text(text[: len(text) // 4 * 3])
    return copy


def append(cluster: LocalCluster, body: bytes) -> None:
    line = [sys.executable, "-m", "duramen.cli.main", "append", LOG, "-"]
    line += ["--data", str(cluster.folder)]
    subprocess.run(line, input=body + b"\n", capture_output=True, timeout=HANG_S, check=True)


def archive_without_spark(*words: str) -> bytes:
    """What a run says that has to fail."""
    line = [sys.executable, "-m", "duramen_spark.main", "archive", LOG, "--runner", "threads"]
    done = subprocess.run([*line, *words], capture_output=True, timeout=2 * HANG_S, check=False)
    assert done.returncode == 1, done
    return done.stdout + done.stderr


def test_jobs_show_no_key_no_token_and_no_record(
    server: ObjectServer,
    tmp_path: Path,
    spark_env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = write_keys(tmp_path / "keys", server.environment)
    wrong = write_keys(
        tmp_path / "wrong",
        {**server.environment, "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16)},
    )
    monkeypatch.setenv(KEYS_VARIABLE, str(keys.file))
    cold, nightly, tokens = server.url("planted"), tmp_path / "nightly", tmp_path / "tokens"
    with running_cluster(tmp_path / "c", "--cold-store", cold) as cluster:
        for name in ("planted", "copy"):
            run(create_log(cluster, name, {"tiering": {"policy": "copy"}}))
        body = secrets.token_hex(24).encode()
        append(cluster, body)
        run(close_segment(cluster, "planted"))
        issue = ("ca", "issue", str(cluster.folder / "ca"), "archive", "nightly")
        assert main([*issue, "--out", str(nightly)]) == 0
        planted = keys.values | wrong.values | write_tokens(cluster, tokens) | {"body": body}
        planted |= read_key_lines(cluster.folder) | read_key_lines(nightly)

        state, spark = cluster.state(), WatchedSpark(tmp_path / "spark", spark_env)
        place = ["--zookeeper", state["zookeeper"], "--cluster", state["cluster"]]
        place += ["--cold-store", cold]
        with monkeypatch.context() as patch:
            patch.setenv(KEYS_VARIABLE, str(wrong.file))
            refused = archive_without_spark(*place, "--identity", str(nightly))
        assert b"403 Forbidden (SignatureDoesNotMatch)" in refused, refused
        cut = cut_key(nightly, tmp_path / "cut")
        unknown = archive_without_spark(*place, "--identity", str(cut))
        assert b"tls.key" in unknown, unknown
        place += ["--identity", str(nightly)]
        reports = tmp_path / "reports"
        reports.mkdir()
        told = spark.run(
            "archive", "-m", "duramen_spark.main", "archive", LOG, *place, "--json",
            "--metrics-file", str(reports / "metrics"), "--summary-file", str(reports / "summary"),
        )  # fmt: skip
        assert json.loads(told)["segments"] == {"archived": 1}, told

        queries = tmp_path / "queries"
        queries.mkdir()
        given = {"url": state["read_url"], "write_url": state["write_url"], "cold_store": cold}
        given |= {"tokens": str(tokens), "folder": str(queries)}
        told = spark.run("queries", "-m", "tests.spark.secret_queries", json.dumps(given))
        assert "rows 1 1" in told and "stream 1" in told, told
        # What was refused says why, or that nobody is told.
        lines = [line for line in told.splitlines() if line.startswith(REFUSED)]
        assert len(lines) == 7 and all("unauthenticated" in line for line in lines), lines

        asked = Asked({})
        ask_admin_ports(cluster, asked)
        places = {**spark.places, **asked.answers, **read_processes(cluster)}
        places |= {"a wrong key of a bucket": refused, "a key that is cut": unknown}
        places |= read_files(cluster.folder / "logs") | read_files(reports) | read_files(queries)
        assert {"pickles/batch", "checkpoint/metadata"} <= set(read_files(queries))
        assert search(places, planted) == []
        # Each place was looked at: what is among the settings is found where Spark shows those.
        marked = {
            found.partition(" in ")[2] for found in search(places, {"mark": spark.mark.encode()})
        }
        assert {place.partition(":")[0] for place in marked} >= MARKED, sorted(marked)
        objects = read_files(server.folder)
        assert len(objects) > 1 and search(objects, planted) == [], (
            "rows are packed, keys not there"
        )
