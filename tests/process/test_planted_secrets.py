"""What is secret is planted in a cluster that asks who calls, and looked for wherever people look.

Tokens that count, end, are revoked or never were, keys of identities, bodies and headers of
records: none stands in a log file, a metric, an answer of an admin port, a refusal, a command line
or an environment. Tokens and keys stand in no file of the cluster but those that are made for them.

Source: docs/security.md, docs/protocol/credentials.md "API tokens".
"""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import httpx
import pytest

from duramen.client.credentials.local_cluster import TOKEN_FILE
from duramen.runtime.credentials.access_tokens.token_text import make_token
from tests.process.cluster import LocalCluster, create_log, run
from tests.process.secret_places import (
    OF_SECRETS,
    Asked,
    ask_admin_ports,
    read_files,
    read_processes,
    search,
    spell,
)
from tests.process.times import HANG_S

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.timeout(2 * HANG_S)]

LOG: Final = "default/planted"
RECORDS: Final = "/v1/namespaces/default/logs/planted/records"
TOKENS: Final = "/v1/access-tokens"
_KEY_LINE: Final = re.compile(r"^[A-Za-z0-9+/=]{40,}$", re.MULTILINE)


class Planted(NamedTuple):
    """Name → what nobody may find."""

    credentials: dict[str, bytes]
    contents: dict[str, bytes]

    @property
    def all(self) -> dict[str, bytes]:
        return self.credentials | self.contents


def command(cluster: LocalCluster, *words: str, stdin: bytes = b"") -> bytes:
    line = [sys.executable, "-m", "duramen.cli.main", *words, "--data", str(cluster.folder)]
    return subprocess.run(line, input=stdin, capture_output=True, timeout=HANG_S, check=True).stdout


def plant(cluster: LocalCluster, asked: Asked) -> Planted:
    """Use each of them as people do, and as people do it wrong."""
    create = ("token", "create", "--scope", "append,read:default", "--expires", "1h")
    texts = {name: command(cluster, *create).decode().strip() for name in ("live", "revoked")}
    texts["unknown"] = make_token().text
    texts["own"] = (cluster.folder / TOKEN_FILE).read_text().strip()
    contents = {name: secrets.token_hex(24).encode() for name in ("line", "body", "header")}
    command(cluster, "append", LOG, "-", stdin=contents["line"] + b"\n")
    command(cluster, "token", "revoke", texts["revoked"].rpartition("_")[0])
    record = {
        "body": contents["body"].decode(), "headers": [["kind", contents["header"].decode()]],
    }  # fmt: skip
    state = cluster.state()
    for side in ("write_url", "read_url"):
        with httpx.Client(base_url=state[side], timeout=HANG_S) as http:
            for name, text in texts.items():
                shown = {"authorization": f"Bearer {text}"}
                calls = (
                    ("POST", RECORDS, shown), ("GET", f"{RECORDS}?from=yesterday", shown),
                    ("POST", f"{RECORDS}?dry=1", shown), ("PUT", "/v1/namespaces/other", shown),
                    ("DELETE", TOKENS, shown), ("GET", RECORDS, {"duramen-identity": text}),
                )  # fmt: skip
                for method, path, headers in calls:
                    body = {"records": [record]} if method == "POST" else None
                    answer = http.request(method, path, headers=headers, json=body)
                    if answer.status_code >= 400:
                        asked.note(f"{method} {path} with {name} at {side}", answer)
    keys = {
        f"{path.parent.name}/{path.name}": _KEY_LINE.findall(path.read_text())[1].encode()
        for path in cluster.folder.rglob("*.key")
    }
    tokens = {f"token {name}": text.rpartition("_")[2].encode() for name, text in texts.items()}
    assert len(set(keys.values())) > len(state["processes"]) and len(tokens) == 4
    return Planted(tokens | keys, contents)


def test_nothing_secret_stands_where_people_look(shared_cluster: LocalCluster) -> None:
    cluster, asked = shared_cluster, Asked({})
    run(create_log(cluster, "planted", {}))
    planted = plant(cluster, asked)
    assert len(asked.answers) > 20, "what was done wrong was refused"
    ask_admin_ports(cluster, asked)
    logs = read_files(cluster.folder / "logs")
    assert len(logs) == len(cluster.state()["processes"]) and sum(map(len, logs.values())) > 1_000
    places = {**asked.answers, **logs, **read_processes(cluster)}
    assert search(places, planted.all) == []
    files = read_files(cluster.folder)
    assert len(files) > 30
    assert search(files, planted.credentials) == []
    for path in cluster.folder.rglob("*"):
        assert path.name not in OF_SECRETS or path.stat().st_mode & 0o077 == 0, path
    # The search finds what is there.
    bookies = [place for place in search(files, planted.contents) if " in bookie-" in place]
    assert len(bookies) >= 2 * len(planted.contents), "records lie on two disks at least"
    leak = cluster.folder / "logs" / "leak.log"
    for name, secret in planted.all.items():
        for form in spell(secret):
            leak.write_bytes(b"x" + form + b"x")
            assert f"{name} in leak.log" in search(read_files(leak.parent), planted.all)
    leak.unlink()


def test_a_leak_in_a_log_or_an_environment_is_found(tmp_path: Path) -> None:
    """The ways by which the other test looks are ways."""
    secret = secrets.token_hex(24).encode()
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.log").write_bytes(b"Authorization: Bearer dur1_x_" + secret)
    (tmp_path / TOKEN_FILE).write_bytes(secret)
    assert search(read_files(tmp_path), {"it": secret}) == ["it in deep/a.log"]
    answer = httpx.Response(401, headers={"x-told": secret.decode()}, content=b"")
    asked = Asked({})
    asked.note("a port", answer)
    assert search(asked.answers, {"it": secret}) == ["it in a port"]
