"""Where people look and nothing secret may stand: files, answers, command lines; how it is found.

Used by the tests that plant secrets. Source: docs/security.md.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import httpx

from duramen.client.credentials.local_cluster import CURL_FILE, TOKEN_FILE
from tests.process.cluster import LocalCluster
from tests.process.times import HANG_S

OF_SECRETS: Final = frozenset({TOKEN_FILE, CURL_FILE, "tls.key", "ca.key", "server.pem"})
"""Files that are made for them, for their owner alone."""


class Asked(NamedTuple):
    """Place → what was answered there."""

    answers: dict[str, bytes]

    def note(self, place: str, answer: httpx.Response) -> httpx.Response:
        told = b"".join(name + b": " + value + b"\n" for name, value in answer.headers.raw)
        self.answers[place] = told + answer.content
        return answer


def search(places: Mapping[str, bytes], planted: Mapping[str, bytes]) -> list[str]:
    """Where which of it stands, as it is or in another spelling."""
    return sorted(
        f"{name} in {place}"
        for place, content in places.items()
        for name, secret in planted.items()
        if any(form in content for form in spell(secret))
    )


def spell(secret: bytes) -> Iterator[bytes]:
    yield secret
    yield secret.hex().encode()
    yield base64.b64encode(secret).rstrip(b"=")


def ask_admin_ports(cluster: LocalCluster, asked: Asked) -> None:
    """Every route of every admin port that changes nothing."""
    with httpx.Client(verify=cluster.trust_admin_ports(), timeout=HANG_S) as http:
        for process in cluster.state()["processes"]:
            if (url := process["admin_url"]) is None:
                continue
            document = http.get(f"{url}/openapi.json").raise_for_status().json()
            paths = [path for path, calls in document["paths"].items() if "get" in calls]
            for path in {*paths, "/metrics", "/healthz", "/readyz"}:
                place = f"{process['id']}{path}"
                asked.note(place, http.get(url + re.sub(r"{\w+}", "1", path)))


def read_processes(cluster: LocalCluster) -> dict[str, bytes]:
    """Command lines and environments of all that belongs to the cluster."""
    found = {}
    for pid in (*cluster.list_pids(), cluster.supervisor_pid):
        for name in ("cmdline", "environ"):
            found[f"{name} of {pid}"] = Path(f"/proc/{pid}/{name}").read_bytes()
    return found


def read_files(folder: Path) -> dict[str, bytes]:
    """What is in a folder, but for the files that are made for secrets."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in OF_SECRETS
    }
