"""Hostile input on real sockets: refused clearly, nothing written, nobody else disturbed.

Real processes, one cluster for the whole table. While each attack runs a steady appender goes on
at another log: every one of its appends must succeed. After each the attacked log is as long as
before, and the write proxy holds nothing. Times are the product's own. Source:
docs/protocol/errors.md.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from duramen.units import MIB
from duramen.wire.edge.content_coding import zstd
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.times import HANG_S, SESSION_S, STILL_S
from tests.ticker import Ticker, running_ticker
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.quiet]

LOG = "/v1/namespaces/default/logs/target"
RECORDS = f"{LOG}/records"
STREAM = f"{RECORDS}:stream"
JSON = "content-type: application/json"
RAW = "content-type: text/plain"
CHUNKED = "transfer-encoding: chunked"
WAIT_S = 30.0

GROWTH_BYTES_MAX = 128 * MIB
"""What a write proxy may come to hold in memory by all of these together: some bodies at once."""


class Outcome(NamedTuple):
    """An append: from when to when it took, and its status or why there is none."""

    began_s: float
    ended_s: float
    said: int | str


class Steady:
    """An appender that never stops, and what became of its appends."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self.outcomes: list[Outcome] = []
        self._thread = threading.Thread(target=self._append)

    def _append(self) -> None:
        with httpx.Client(timeout=WAIT_S) as client:
            while not self._stop.is_set():
                began_s = time.monotonic()
                said: int | str
                try:
                    said = client.post(
                        self._url, headers={"content-type": "text/plain"}, content=b"steady"
                    ).status_code
                except httpx.HTTPError as error:
                    said = repr(error)
                self.outcomes.append(Outcome(began_s, time.monotonic(), said))

    def __enter__(self) -> Steady:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_plain_cluster(tmp_path_factory.mktemp("hostile") / "c") as started:
        run(create_log(started, "target", {}))
        run(create_log(started, "steady", {}))
        url = started.state()["write_url"] + RECORDS
        answer = httpx.post(
            url, headers={"content-type": "text/plain"}, content=b"the only one", timeout=WAIT_S
        )
        assert answer.status_code == 200
        before = _memory_bytes(started)
        yield started
        assert _memory_bytes(started) - before < GROWTH_BYTES_MAX


@pytest.fixture(scope="module")
def ticker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ticker]:
    with running_ticker(tmp_path_factory.mktemp("control")) as started:
        yield started


@pytest.fixture(autouse=True)
def _others_are_served(cluster: LocalCluster, ticker: Ticker) -> Iterator[None]:
    state = cluster.state()
    before = httpx.get(state["read_url"] + f"{RECORDS}/tail", timeout=WAIT_S).json()["tail"]
    with Steady(state["write_url"] + RECORDS.replace("target", "steady")) as steady:
        yield
        count = len(steady.outcomes)
        wait_in_thread(
            lambda: len(steady.outcomes) >= count + 3, HANG_S, "the steady appender goes on"
        )
    others = [outcome for outcome in steady.outcomes if outcome.said != 200]
    # A machine that stands still may cost the session with ZooKeeper, and that an answer: only
    # what the control shows is believed.
    given_s = [ticker.stalled_s(one.began_s - SESSION_S, one.ended_s) for one in others]
    assert all(stalled_s >= STILL_S for stalled_s in given_s), (others, given_s)
    tail = httpx.get(state["read_url"] + f"{RECORDS}/tail", timeout=WAIT_S).json()["tail"]
    assert tail == before, "something was written"
    wait_in_thread(lambda: _statistics(cluster)["requests"] == 0, HANG_S, "nothing is held")
    assert _statistics(cluster)["in_flight_bytes"] == 0


def _proxy_of(cluster: LocalCluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.process(cluster.ids("writeproxy")[0])
    return found


def _statistics(cluster: LocalCluster) -> dict[str, Any]:
    url = _proxy_of(cluster)["admin_url"]
    found: dict[str, Any] = httpx.get(url + "/v1/statistics", timeout=WAIT_S).json()
    return found


def _memory_bytes(cluster: LocalCluster) -> int:
    """The most that the write proxy has held in memory."""
    status = Path(f"/proc/{_proxy_of(cluster)['pid']}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def _connect(cluster: LocalCluster) -> socket.socket:
    address = httpx.URL(cluster.state()["write_url"])
    assert address.port is not None
    return socket.create_connection((address.host, address.port), timeout=WAIT_S)


def _head(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: 127.0.0.1", *lines, "", ""]).encode()


def _read_all(connection: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65_536):
            found += piece
    return found


def _exchange(cluster: LocalCluster, sent: bytes, *, is_cut: bool = False) -> tuple[int, str]:
    """Send bytes as they are; the status and the code of the answer, (0, "") where none came."""
    with _connect(cluster) as connection:
        # The server may have answered and hung up before it has everything.
        with contextlib.suppress(OSError):
            connection.sendall(sent)
            if is_cut:
                connection.shutdown(socket.SHUT_WR)
        found = b""
        while b"\r\n\r\n" not in found:
            try:
                piece = connection.recv(65_536)
            except ConnectionError:
                break
            if not piece:
                break
            found += piece
        if not found:
            return 0, ""
        status = int(found.split(b" ", 2)[1])
        head, _, body = found.partition(b"\r\n\r\n")
        if b"problem+json" not in head:
            return status, ""
        while not body.rstrip().endswith(b"}"):
            body += connection.recv(65_536)
        return status, json.loads(body)["code"]


# --- Heads ---

HEADS = {
    "two lengths": _head(RECORDS, RAW, "content-length: 1", "content-length: 2") + b"xx",
    "length that is none": _head(RECORDS, RAW, "content-length: -1") + b"x",
    "length beyond all": _head(RECORDS, RAW, "content-length: 99999999999999999999") + b"x",
    "chunk size that is none": _head(RECORDS, RAW, CHUNKED) + b"zz\r\nx\r\n0\r\n\r\n",
    "coding twice": _head(RECORDS, RAW, "transfer-encoding: chunked, gzip")
    + b"1\r\nx\r\n0\r\n\r\n",
    "name that is none": _head(RECORDS, "bad name: x", "content-length: 1") + b"x",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "no protocol": b"GET / FTP/9\r\n\r\n",
    "header of 2 MiB": _head(RECORDS, RAW, "x: " + "y" * 2 * MIB, "content-length: 1") + b"x",
    "10,000 headers": _head(RECORDS, RAW, *[f"x{n}: y" for n in range(10_000)], "content-length: 1")
    + b"x",
    "target of 1 MiB": _head(RECORDS + "?" + "y" * MIB, RAW, "content-length: 1") + b"x",
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_that_contradict_themselves_or_are_too_large(
    cluster: LocalCluster, name: str
) -> None:
    status, _ = _exchange(cluster, HEADS[name], is_cut=True)
    assert status == 0 or 400 <= status < 500


def test_types_and_options_that_are_given_twice(cluster: LocalCluster) -> None:
    for lines in (
        (RAW, JSON),
        (RAW, "duramen-producer: a;0;0", "duramen-producer: b;0;0"),
        (RAW, "duramen-fencing-token: a", "duramen-fencing-token: b"),
        (RAW, "duramen-match-seq-num: 1", "duramen-match-seq-num: 2"),
    ):
        status, code = _exchange(cluster, _head(RECORDS, *lines, "content-length: 1") + b"x")
        assert (status, code) == (400, "invalid_argument"), lines


# --- Bodies ---


def test_bodies_that_are_cut_in_the_middle(cluster: LocalCluster) -> None:
    text = b'{"records":[{"body":"x"}]}'
    for head, body in (
        (_head(RECORDS, JSON, f"content-length: {len(text) + 9}"), text),
        (_head(RECORDS, RAW, "content-length: 10"), b"short"),
        (_head(RECORDS, RAW, CHUNKED), b"5\r\nshort\r\n"),
        (_head(RECORDS, RAW, CHUNKED), b"9\r\nshort"),
        (_head(STREAM, "content-type: application/x-ndjson", CHUNKED), b'5\r\n{"rec\r\n'),
    ):
        with _connect(cluster) as connection:
            connection.sendall(head + body)
            connection.shutdown(socket.SHUT_WR)
            answer = _read_all(connection)
        assert not answer or b" 400 " in answer[:20] or STREAM.encode() in head, answer
        assert b'"start"' not in answer


BOMBS = {
    "gzip": gzip.compress(bytes(64 * MIB)),
    "zstd": zstd.compress(bytes(512 * MIB), level=1),
    # Every member is small, and all of them together are not.
    "many members": b"".join([gzip.compress(bytes(MIB))] * 200),
}


@pytest.mark.parametrize("name", BOMBS)
def test_decompression_bombs(cluster: LocalCluster, name: str) -> None:
    coding = f"content-encoding: {'zstd' if name == 'zstd' else 'gzip'}"
    for kind, code in ((RAW, "record_too_large"), (JSON, "batch_too_large")):
        head = _head(RECORDS, kind, coding, f"content-length: {len(BOMBS[name])}")
        assert _exchange(cluster, head + BOMBS[name]) == (413, code)


FRAMES = {
    "empty frames": ("zstd", zstd.compress(b"")),
    "skippable frames": ("zstd", bytes.fromhex("502a4d1800000000")),
    "empty members": ("gzip", gzip.compress(b"")),
}


@pytest.mark.parametrize("name", FRAMES)
def test_many_frames_in_one_body(cluster: LocalCluster, name: str) -> None:
    coding, frame = FRAMES[name]
    lines = (JSON, f"content-encoding: {coding}", f"content-length: {len(frame) * 300_000}")
    found = _exchange(cluster, _head(RECORDS, *lines) + frame * 300_000)
    assert found == (400, "invalid_argument")


def test_a_bomb_in_a_session(cluster: LocalCluster) -> None:
    bomb = gzip.compress(b"{" * (64 * MIB))
    head = _head(STREAM, "content-type: application/x-ndjson", "content-encoding: gzip", CHUNKED)
    with _connect(cluster) as connection:
        connection.sendall(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(bomb), bomb))
        answer = b""
        while b"session_ended" not in answer:
            piece = connection.recv(65_536)
            assert piece, answer
            answer += piece
    assert b"batch_too_large" in answer


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"records":[{"body":"\xff\xfe"}]}', "invalid_argument"),
        (b'{"records":[{"body":"\xed\xa0\x80"}]}', "invalid_argument"),
        (b'{"records":[{"body":"\\ud800"}]}', "invalid_argument"),
        (b"[" * 100_000, "invalid_argument"),
        (b'{"records":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_argument"),
        (b'{"records":' + b'{"a":' * 50_000, "invalid_argument"),
        (b'{"records":[{"body":"x","txid":' + b"9" * 5_000 + b"}]}", "invalid_argument"),
        (b'{"records":[{"body":"x"}],"records":[{"body":"y"}]}', "invalid_argument"),
    ],
    ids=["no UTF-8", "surrogate", "escaped surrogate", "depth", "depth in", "objects", "number",
         "twice"],
)  # fmt: skip
def test_json_that_means_harm(cluster: LocalCluster, body: bytes, code: str) -> None:
    head = _head(RECORDS, JSON, f"content-length: {len(body)}")
    assert _exchange(cluster, head + body) == (400, code)


def test_ten_thousand_tiny_records_and_one_more(cluster: LocalCluster) -> None:
    run(create_log(cluster, "tiny", {}))
    url = cluster.state()["write_url"] + RECORDS.replace("target", "tiny")
    start = 0
    for media, records in (
        ("application/json", lambda n: b'{"records":[%b]}' % b",".join([b'{"body":""}'] * n)),
        ("application/x-ndjson", lambda n: b'{"body":""}\n' * n),
    ):
        headers = {"content-type": media}
        answer = httpx.post(url, headers=headers, content=records(10_000), timeout=WAIT_S)
        assert answer.status_code == 200
        found = (answer.json()["start"]["seq_num"], answer.json()["end"]["seq_num"])
        assert found == (start, start + 10_000)
        start += 10_000
        refused = httpx.post(url, headers=headers, content=records(10_001), timeout=WAIT_S)
        assert (refused.status_code, refused.json()["code"]) == (413, "too_many_records")
    read_url = cluster.state()["read_url"] + RECORDS.replace("target", "tiny")
    assert httpx.get(read_url + "/tail", timeout=WAIT_S).json()["tail"]["seq_num"] == start


# --- Slow ones ---


def test_many_slow_clients_take_nothing_from_others(cluster: LocalCluster) -> None:
    """Slow heads, slow bodies that announce much, and slow sessions, all at once."""
    line = b'{"records":[{"body":"' + b"x" * 200_000
    beginnings = [
        *[_head(RECORDS, JSON)[:-4]] * 50,
        *[_head(RECORDS, JSON, "content-length: 10000000") + b" " * 100_000] * 60,
        *[_head(RECORDS, RAW, CHUNKED) + b"50\r\nhel"] * 50,
        *[_head(STREAM, "content-type: application/x-ndjson", CHUNKED)
          + b"%x\r\n%b" % (len(line) + 100, line)] * 60,
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(_connect(cluster)) for _ in beginnings]
        for connection, beginning in zip(slow, beginnings, strict=True):
            connection.sendall(beginning)
        wait_in_thread(lambda: _statistics(cluster)["requests"] >= 170, HANG_S, "all have begun")
        held = _statistics(cluster)["in_flight_bytes"]
        assert held < 60 * 100_000 + 60 * 210_000 + MIB, (
            "what is here counts, not what is announced"
        )
        for _ in range(3):
            for connection in slow:
                connection.send(b" ")
        url = cluster.state()["write_url"] + RECORDS.replace("target", "steady")
        large = b'{"records":[{"body":"' + b"x" * MIB + b'"}]}'
        answer = httpx.post(
            url, headers={"content-type": "application/json"}, content=large, timeout=WAIT_S
        )
        assert answer.status_code in (200, 413), "large ones are served as well"
        small = httpx.post(
            url, headers={"content-type": "text/plain"}, content=b"x" * 900_000, timeout=WAIT_S
        )
        assert small.status_code == 200
