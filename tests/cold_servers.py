"""Real servers for cold stores: an S3 server over a folder (versitygw), and HDFS (two processes).

Both are made from pinned sources on first use and kept in the user's cache folder: the one by
Go's tool, the other's jars by Maven. Where the tool is not there, or cannot fetch, `Missing` says
so and fixtures skip with it. Servers listen on loopback, keep their data in the caller's folder,
and end with the context.

Used by fixtures of tests/contract and of tests that need an object store. Source: docs/testing.md.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from duramen.cluster.layout import pick_free_port
from tests import go_builds
from tests.cache import cache_folder
from tests.pauses import look_again
from tests.requirements import Need

ROOT: Final = Path(__file__).resolve().parents[1]

S3_MODULE: Final = "github.com/versity/versitygw/cmd/versitygw"
S3_VERSION: Final = "v1.8.0"
BUCKET: Final = "cold"

HADOOP_POM: Final = ROOT / "tests" / "hdfs" / "pom.xml"

MAKE_S: Final = 600
"""To build or to fetch: minutes on a busy machine."""

READY_S: Final = 90


class Missing(Exception):
    """A server cannot be had here: what it lacks, and what was found instead."""

    def __init__(self, need: Need, detail: str) -> None:
        super().__init__(f"{need}: {detail}")
        self.need, self.detail = need, detail


class ObjectServer(NamedTuple):
    """A running S3 server with one bucket."""

    folder: Path
    """Where the bucket's objects lie, as files."""
    environment: Mapping[str, str]
    """What clients need: endpoint, region, credentials."""

    def url(self, prefix: str) -> str:
        """A cold store in the bucket."""
        return f"s3://{BUCKET}/{prefix}"


@contextmanager
def running_s3(folder: Path) -> Iterator[ObjectServer]:
    """An S3 server with its data in `folder`.

    Raises:
        Missing: it cannot be built here.
    """
    program = _make_s3()
    (folder / "objects" / BUCKET).mkdir(parents=True)
    port = pick_free_port()
    # Such as nothing else has in it, for who looks whether they leak.
    keys = {f"ROOT_{kind}_KEY": secrets.token_hex(16) for kind in ("ACCESS", "SECRET")}
    command = [str(program), "--port", f"127.0.0.1:{port}", "--quiet", "posix", "objects"]
    with _running(command, folder, "s3.log", keys) as is_alive:
        _wait(lambda: _answers(f"http://127.0.0.1:{port}/"), is_alive, folder / "s3.log")
        environment = {
            "AWS_ACCESS_KEY_ID": keys["ROOT_ACCESS_KEY"],
            "AWS_SECRET_ACCESS_KEY": keys["ROOT_SECRET_KEY"],
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }
        yield ObjectServer(folder / "objects" / BUCKET, environment)


@contextmanager
def running_hdfs(folder: Path) -> Iterator[str]:
    """A NameNode and a DataNode; yields `host:port` of the NameNode's HTTP server.

    Raises:
        Missing: there is no Java or Maven, or the jars cannot be fetched.
    """
    java = shutil.which("java")
    if java is None:
        raise Missing(Need.JDK, "there is no java on the path, which runs HDFS")
    jars = _fetch_hadoop()
    conf, address = _write_hadoop_conf(folder)
    command = [
        java, "-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
        "--add-opens", "java.base/java.lang=ALL-UNNAMED",
    ]  # fmt: skip
    command += ["-cp", f"{conf}:{jars}/*"]
    server = "org.apache.hadoop.hdfs.server"
    name_node = [*command, f"{server}.namenode.NameNode"]
    made = subprocess.run(
        [*name_node, "-format", "-nonInteractive"],
        cwd=folder, timeout=READY_S, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-1000:]
    with ExitStack() as stack:
        is_alive = stack.enter_context(_running(name_node, folder, "namenode.log", {}))
        url = f"http://{address}/webhdfs/v1/?op=LISTSTATUS"
        _wait(lambda: _answers(url), is_alive, folder / "namenode.log")
        data_node = [*command, f"{server}.datanode.DataNode"]
        is_alive = stack.enter_context(_running(data_node, folder, "datanode.log", {}))
        state = f"http://{address}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        log = folder / "datanode.log"
        _wait(lambda: '"NumLiveDataNodes" : 1' in _fetch(state), is_alive, log)
        _wait(lambda: _takes_a_file(address), is_alive, log)
        yield address


def _takes_a_file(address: str) -> bool:
    """Whether a file can be written, and away with it: a NameNode takes none for a moment.

    For its first file a DataNode loads a client of its own, which on a busy machine takes longer
    than whoever writes waits for an answer.
    """
    file = f"http://{address}/webhdfs/v1/first"
    try:
        place = json.loads(_call("PUT", f"{file}?op=CREATE&overwrite=true&noredirect=true"))
        _call("PUT", place["Location"], b"1")
        _call("DELETE", f"{file}?op=DELETE")
    except urllib.error.HTTPError:
        return False
    return True


def _call(method: str, url: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, body, method=method)
    with urllib.request.urlopen(request, timeout=READY_S) as answer:
        content: bytes = answer.read()
    return content


def _make_s3() -> Path:
    """The server's program, built once for each version."""

    def build(folder: Path) -> None:
        go = shutil.which("go")
        if go is None:
            raise Missing(Need.GO, "it is not on the path, and builds the S3 server")
        environment = {**os.environ, **go_builds.ENVIRONMENT, "GOBIN": str(folder)}
        _make([go, "install", f"{S3_MODULE}@{S3_VERSION}"], environment)

    return cache_folder("versitygw", S3_MODULE, S3_VERSION, make=build) / "versitygw"


def _fetch_hadoop() -> Path:
    """Hadoop's jars, fetched once for each change of the pom."""

    def fetch(folder: Path) -> None:
        maven = shutil.which("mvn")
        if maven is None:
            raise Missing(Need.MAVEN, "it is not on the path, and fetches the jars of HDFS")
        command = [maven, "-q", "-B", "-f", str(HADOOP_POM), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
        _make(command, dict(os.environ))

    return cache_folder("hadoop", HADOOP_POM.read_bytes(), make=fetch)


def _make(command: list[str], environment: dict[str, str]) -> None:
    made = subprocess.run(
        command, env=environment, timeout=MAKE_S, check=False, capture_output=True, text=True
    )
    if made.returncode != 0:
        said = (made.stderr + made.stdout).strip()[-300:]
        need = Need.GO if Path(command[0]).name == "go" else Need.MAVEN
        raise Missing(need, f"{Path(command[0]).name} cannot make it: {said}")


def _write_hadoop_conf(folder: Path) -> tuple[Path, str]:
    """Its two files of settings, and the web applications' folders, without which it stops."""
    conf = folder / "conf"
    address = f"127.0.0.1:{pick_free_port()}"
    _write_settings(
        conf / "core-site.xml",
        {
            "fs.defaultFS": f"hdfs://127.0.0.1:{pick_free_port()}",
            "hadoop.tmp.dir": str(folder / "tmp"),
        },
    )
    _write_settings(
        conf / "hdfs-site.xml",
        {
            "dfs.replication": "1",
            "dfs.namenode.name.dir": (folder / "name").as_uri(),
            "dfs.datanode.data.dir": (folder / "data").as_uri(),
            "dfs.namenode.http-address": address,
            "dfs.datanode.address": f"127.0.0.1:{pick_free_port()}",
            "dfs.datanode.http.address": f"127.0.0.1:{pick_free_port()}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{pick_free_port()}",
            "dfs.datanode.hostname": "127.0.0.1",
            "dfs.permissions.enabled": "false",
            "dfs.namenode.safemode.extension": "0",
        },
    )
    for name in ("hdfs", "datanode"):
        web = conf / "webapps" / name / "WEB-INF"
        web.mkdir(parents=True)
        (web / "web.xml").write_text("<web-app/>")
    return conf, address


def _write_settings(path: Path, settings: Mapping[str, str]) -> None:
    path.parent.mkdir(exist_ok=True)
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in settings.items()
    )
    path.write_text(f"<configuration>{rows}</configuration>")


@contextmanager
def _running(
    command: list[str], folder: Path, log: str, environment: Mapping[str, str]
) -> Iterator[Callable[[], bool]]:
    """A server as a child; yields whether it still runs."""
    with (folder / log).open("ab") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=output, env={**os.environ, **environment}
        )
    try:
        yield lambda: process.poll() is None
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def _wait(is_ready: Callable[[], bool], is_alive: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while not is_ready():
        assert is_alive(), log.read_text()[-1000:]
        assert time.monotonic() < deadline, f"not ready in {READY_S} s: {log.read_text()[-1000:]}"
        look_again()


def _answers(url: str) -> bool:
    """Whether a server is there, whatever it thinks of us."""
    try:
        _fetch(url)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        body: bytes = answer.read()
    return body.decode()
