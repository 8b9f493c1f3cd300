"""`duramen append` and `duramen read` against a server that plays both proxies from a script.

The server keeps the batches of one log and answers appends with what the test put in its queue
first. What is checked is what a user sees: records, exit codes, statistics, history, messages.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from duramen.cli.figures import format_figures, summarize_append
from duramen.cli.main import main
from duramen.client.bulk_append import AppendFigures, PreparedBatch
from duramen.client.rest_client import Appended
from duramen.errors import DuramenError
from duramen.ids import Dlsn, EntryId, Epoch
from duramen.wire.read_answers import PlacedBatch, pack_batches
from duramen.wire.record_batch import check_batch, encode_batch

LOG = "default/orders"
PATH = "/v1/namespaces/default/logs/orders"


class FakeProxies(http.server.ThreadingHTTPServer):
    """One log in memory; `answers` are given before anything is stored."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.batches: list[PlacedBatch] = []
        self.answers: list[DuramenError | int] = []
        self.created: list[str] = []
        self.answer_batches = 2
        self.places = {"head": 0}
        """Sequence numbers that positions stand for; numbers need none."""
        self.trims: list[int] = []
        """Where the log begins when it is read for the first time, the second, …"""
        self.trimmed = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def end(self) -> int:
        return self.batches[-1].end_seq_num if self.batches else 0

    def store(self, encoded: bytes) -> PlacedBatch:
        dlsn = Dlsn(Epoch(1), EntryId(len(self.batches)), 0)
        placed = PlacedBatch(dlsn, self.end, check_batch(encoded).record_count, encoded)
        self.batches.append(placed)
        return placed


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeProxies

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert self.path == f"{PATH}/records"
        if self.server.answers:
            answer = self.server.answers.pop(0)
            if isinstance(answer, int):
                self._send(answer, b"bad gateway")
            else:
                self._send(answer.kind.status, json.dumps(answer.problem()).encode())
            return
        placed = self.server.store(body)
        start = {"seq_num": placed.seq_num, "dlsn": str(placed.dlsn)}
        ends = {"start": start, "end": {"seq_num": placed.end_seq_num}}
        self._send(200, json.dumps(ends).encode())

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.created.append(self.path)
        self._send(201, b"{}")

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        assert url.path == f"{PATH}/records"
        if self.server.trims:
            self.server.trimmed = self.server.trims.pop(0)
        asked = parse_qs(url.query)["from"][0]
        first = self.server.places.get(asked)
        if first is None:
            first = int(asked.removeprefix("seq:"))
        headers = {}
        if first < self.server.trimmed:
            first = self.server.trimmed
            headers["Duramen-Moved-To"] = f"seq:{first}"
        later = [b for b in self.server.batches if b.end_seq_num > first]
        given = later[: self.server.answer_batches]
        end = given[-1].end_seq_num if given else first
        headers["Duramen-Next"] = f"seq:{end}"
        if given:
            headers["Duramen-Start"] = f"seq:{first}"
        if len(given) == len(later):
            headers["Duramen-Tail"] = f"seq:{end}"
        self._send(200, pack_batches(given), headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"content-length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxies(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProxies]:
    server = FakeProxies()
    monkeypatch.setenv("DURAMEN_URL", server.url)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"".join(b"line %d\n" % i for i in range(25_000)) + b"\n\xff\0\n")
    return path


def fill(proxies: FakeProxies, *counts: int) -> None:
    for count in counts:
        bodies = [b"r%d" % (proxies.end + i) for i in range(count)]
        proxies.store(encode_batch(bodies, 1_700_000_000_000))


def summary_of(capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


# --- Append and read -----------------------------------------------------------------------------


def test_the_tail_and_a_while_ago_are_positions(
    proxies: FakeProxies, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    fill(proxies, 4)
    proxies.places = {"tail-2": 2, "ago:1h": 1, "tail-10": 0}
    assert main(["tail", LOG, "-n", "2"]) == 0
    assert main(["read", LOG, "--ago", "1h", "-n", "1"]) == 0
    assert main(["tail", LOG, "--json", "-n", "2"]) == 0
    out = capfdbinary.readouterr().out.splitlines()
    assert out[:3] == [b"r2", b"r3", b"r1"]
    assert [json.loads(line)["seq_num"] for line in out[3:]] == [2, 3]
    for flags in (["--from", "head", "--ago", "1h"], ["--format", "xml"], ["--ago", "soon"]):
        assert main(["read", LOG, *flags]) == 2
    assert main(["tail", LOG, "-n", "-1"]) == 2


def test_lines_have_number_time_and_body_as_text(
    proxies: FakeProxies, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    proxies.store(encode_batch([b"a\tb\n", b"\xff\x1b[2J", "ü".encode()], 1_700_000_000_000))
    assert main(["read", LOG, "--format", "line"]) == 0
    time = "2023-11-14T22:13:20.000Z"
    assert capfdbinary.readouterr().out.decode().splitlines() == [
        f"0\t{time}\ta\\tb\\n", f"1\t{time}\t\\xff\\x1b[2J", f"2\t{time}\tü",
    ]  # fmt: skip


def test_a_file_comes_back_identical(
    proxies: FakeProxies, lines: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["append", LOG, str(lines), "--create", "--json"]) == 0
    summary = json.loads(capfdbinary.readouterr().out)
    assert proxies.created == [PATH]
    assert set(summary) == {
        "records", "bytes", "seconds", "mb_per_s", "append_p50_ms", "append_p99_ms",
        "first_seq_num", "end_seq_num", "batches",
    }  # fmt: skip
    assert (summary["records"], summary["batches"]) == (25_002, 3)
    assert (summary["first_seq_num"], summary["end_seq_num"]) == (0, 25_002)
    assert summary["bytes"] == lines.stat().st_size - 25_002
    assert main(["read", LOG]) == 0
    captured = capfdbinary.readouterr()
    assert captured.out == lines.read_bytes()
    assert b"25,002 records" in captured.err


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--from", "3", "-n", "4"], [3, 4, 5, 6]),
        (["--from", "tail-2"], [8, 9]),
        (["--from", "tail"], []),
        (["--from", "dlsn:e1n1s2", "-n", "2"], [5, 6]),
        (["--from", "lsn:e1n1", "-n", "2"], [3, 4]),
        (["--from", "txid:70"], [4, 5, 6, 7, 8, 9]),
        (["--from", "time:2026-01-02T03:04:05Z", "-n", "1"], [4]),
        (["--from", "ago:1h30m", "-n", "4", "-f"], [4, 5, 6, 7]),
        (["-n", "0"], []),
        (["-n", "99"], list(range(10))),
        (["-n", "5", "-f"], [0, 1, 2, 3, 4]),
    ],
)
def test_whole_batches_are_cut_to_what_was_asked_for(
    proxies: FakeProxies,
    capfd: pytest.CaptureFixture[str],
    flags: list[str],
    expected: list[int],
) -> None:
    fill(proxies, 3, 4, 3)
    proxies.places |= {"tail-2": 8, "tail": 10, "dlsn:e1n1s2": 5, "lsn:e1n1": 3}
    proxies.places |= dict.fromkeys(["txid:70", "time:2026-01-02T03:04:05Z", "ago:1h30m"], 4)
    assert main(["read", LOG, *flags]) == 0
    assert capfd.readouterr().out == "".join(f"r{i}\n" for i in expected)


@pytest.mark.parametrize("flags", [[], ["--from", "2"], ["--from", "txid:9"]])
def test_a_position_in_a_truncated_prefix_moves_and_the_user_is_told(
    proxies: FakeProxies, capfd: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    fill(proxies, 3, 4, 3)
    proxies.places |= {"txid:9": 1, "head": 5}
    proxies.trims = [5]
    assert main(["read", LOG, *flags, "-n", "3"]) == 0
    captured = capfd.readouterr()
    assert captured.out == "r5\nr6\nr7\n"
    assert ("seq:5 was truncated" in captured.err) == bool(flags)


def test_a_reader_that_truncation_overtakes_goes_on_behind_it(
    proxies: FakeProxies, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(proxies, 3, 4, 3)
    proxies.answer_batches, proxies.trims = 1, [0, 8]
    assert main(["read", LOG]) == 0
    captured = capfd.readouterr()
    assert captured.out == "r0\nr1\nr2\nr8\nr9\n"
    assert "seq:8 was truncated" in captured.err


def test_json_has_the_positions_and_base64_where_it_must(
    proxies: FakeProxies, capfd: pytest.CaptureFixture[str]
) -> None:
    headers = [[(b"k", b"v")], []]
    proxies.store(encode_batch([b"x", b"\xff"], 7, txids=[5, 6], headers=headers))
    assert main(["read", LOG, "--json"]) == 0
    first, second = map(json.loads, capfd.readouterr().out.splitlines())
    assert first == {
        "seq_num": 0,
        "dlsn": "e1n0s0",
        "timestamp": "1970-01-01T00:00:00.007Z",
        "txid": 5,
        "headers": [["k", "v"]],
        "body": "x",
    }
    assert (second["dlsn"], second["format"], second["body"]) == ("e1n0s1", "base64", "/w==")


@pytest.mark.parametrize("form", ["body", "line", "json"])
@pytest.mark.parametrize("words", [["read", LOG], ["tail", LOG, "-n", "7"]])
def test_holes_are_told_beside_the_records(
    proxies: FakeProxies, capfd: pytest.CaptureFixture[str], words: list[str], form: str
) -> None:
    fill(proxies, 3, 1, 3, 2, 1)
    del proxies.batches[3], proxies.batches[1]
    proxies.places["tail-7"] = 3
    assert main([*words, "--format", form]) == 0
    found = capfd.readouterr()
    told = [line for line in found.err.splitlines() if "hole, " in line]
    why = "a hole, no record was ever acknowledged there"
    assert told == [f"seq:3: {why}", f"seq:7 to seq:8: {why}"]
    assert "; 3 numbers in holes" in found.err
    assert len(found.out.splitlines()) == (7 if words[0] == "read" else 4)


def test_a_record_that_comes_again_is_an_error(
    proxies: FakeProxies, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(proxies, 3, 3, 3)
    proxies.batches[1] = proxies.batches[0]
    assert main(["read", LOG]) == 1
    assert "sequence number 0 came again" in capfd.readouterr().err


# --- When things go wrong ------------------------------------------------------------------------


def test_what_is_refused_for_now_is_tried_again(
    proxies: FakeProxies, lines: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    proxies.answers += [DuramenError("log_unavailable", "wait", retry_after_ms=1)] * 2
    history = tmp_path / "history.jsonl"
    assert main(["append", LOG, str(lines), "--json", "--history", str(history)]) == 0
    assert summary_of(capfd)["end_seq_num"] == 25_002
    operations = [json.loads(line) for line in history.read_text().splitlines()]
    assert [op["outcome"] for op in operations] == ["fail", "fail", "ok", "ok", "ok"]
    assert operations[0]["code"] == "log_unavailable"
    ok = operations[2]
    assert (ok["op"], ok["log"], ok["start"], ok["end"], ok["n"]) == (
        "append", LOG, 0, 10_000, 10_000,
    )  # fmt: skip
    assert ok["hash"][1] == hashlib.sha256(b"line 1").hexdigest()
    assert ok["t0_ns"] < ok["t1_ns"]


@pytest.mark.parametrize("answer", [DuramenError("append_uncertain", "who knows"), 502])
def test_an_append_that_stays_uncertain_is_told_with_its_lines(
    proxies: FakeProxies,
    lines: Path,
    capfd: pytest.CaptureFixture[str],
    answer: DuramenError | int,
) -> None:
    proxies.answers.append(answer)
    assert main(["append", LOG, str(lines), "--json", "--timeout", "0"]) == 3
    captured = capfd.readouterr()
    assert json.loads(captured.out)["uncertain_lines"] == [1, 10_000]
    assert "lines 1 to 10000 may or may not be stored" in captured.err
    assert "--skip-lines 10000 if they are there, --skip-lines 0 if not" in captured.err
    assert proxies.batches == []


@pytest.mark.parametrize("answer", [DuramenError("append_uncertain", "who knows"), 502])
def test_an_uncertain_append_is_repeated_by_its_producer(
    proxies: FakeProxies, lines: Path, answer: DuramenError | int
) -> None:
    proxies.answers.append(answer)
    assert main(["append", LOG, str(lines), "--json", "--producer", "me"]) == 0
    stamps = [batch.decode().info.producer for batch in proxies.batches]
    assert [(stamp.producer_id, stamp.sequence) for stamp in stamps if stamp is not None] == [
        ("me", index) for index in range(len(stamps))
    ]
    assert len({stamp.epoch for stamp in stamps if stamp is not None}) == 1


def test_a_refused_repetition_leaves_the_append_uncertain(
    proxies: FakeProxies, lines: Path
) -> None:
    proxies.answers += [DuramenError("append_uncertain", ""), DuramenError("producer_fenced", "")]
    assert main(["append", LOG, str(lines), "--json"]) == 3


def test_a_producer_s_id_is_short_and_printable(lines: Path) -> None:
    assert main(["append", LOG, str(lines), "--producer", "ä"]) == 2


def test_without_a_producer_what_certainly_failed_is_sent_again_and_nothing_else(
    proxies: FakeProxies, lines: Path
) -> None:
    flags = ["append", LOG, str(lines), "--json", "--no-producer"]
    proxies.answers.append(DuramenError("not_appended", "too few bookies took it"))
    assert main(flags) == 0
    assert [batch.decode().info.producer for batch in proxies.batches] == [None] * len(
        proxies.batches
    )
    proxies.answers.append(DuramenError("append_uncertain", "who knows"))
    assert main(flags) == 3
    assert main([*flags, "--producer", "me"]) == 2


def test_skip_lines_goes_on_where_it_stopped(
    proxies: FakeProxies, lines: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["append", LOG, str(lines), "--skip-lines", "25000"]) == 0
    assert "2 records" in capfd.readouterr().err
    assert proxies.batches[0].decode().bodies == [b"", b"\xff\0"]


def test_a_refusal_for_good_ends_at_once(
    proxies: FakeProxies, lines: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    proxies.answers.append(DuramenError("log_not_found", "no such log"))
    assert main(["append", LOG, str(lines), "--json"]) == 1
    captured = capfd.readouterr()
    assert json.loads(captured.out)["code"] == "log_not_found"
    assert "no such log" in captured.err
    assert proxies.batches == []


def test_nobody_there_is_refused_after_the_time(
    lines: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ["--url", "http://127.0.0.1:9", "--timeout", "0.15"]
    assert main(["append", LOG, str(lines), *flags]) == 1
    assert "cannot connect" in capfd.readouterr().err
    assert main(["read", LOG, *flags]) == 1
    assert "cannot connect" in capfd.readouterr().err


def test_a_line_that_is_too_long_is_named(
    proxies: FakeProxies, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(b"a\n" + b"x" * (2 << 20) + b"\n")
    assert main(["append", LOG, str(path)]) == 1
    assert "line 2 is longer" in capfd.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["append", "no-slash"],
        ["append", LOG, "--batch-bytes", "64GiB"],
        ["append", LOG, "--skip-lines", "-1"],
        ["append", LOG, "--linger", "2h"],
        ["append", LOG, "--linger", "soon"],
        ["append", LOG, "--frob"],
        ["read", LOG, "--from", "yesterday"],
        ["read", LOG, "--url", "localhost:1"],
        ["log", "create", LOG, "--config", "[]"],
        ["log", "create", LOG, "--copysets", "sticky"],
        ["log", "create", LOG, "--copysets", "striped", "--config", '{"copysets": "flexible"}'],
        ["log", "reconfigure", LOG],
        ["run", "--once"],
        ["run", "--bookies", "0"],
        ["frob"],
    ],
)
def test_bad_usage_has_its_own_exit_code(
    arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capfd.readouterr().err


def test_without_a_cluster_the_way_out_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DURAMEN_URL", raising=False)
    assert main(["read", LOG, "--data", str(tmp_path)]) == 1
    assert "duramen run" in capfd.readouterr().err


def test_an_append_whose_number_is_not_known_yet_is_told_by_its_place() -> None:
    figures = AppendFigures()
    batch = PreparedBatch(1, [b"a"], 1, b"")
    figures.on_appended(batch, Appended(None, None, "e4n7s0"), 0.1)
    summary = summarize_append(figures)
    assert summary["last_dlsn"] == "e4n7s0" and summary["end_seq_num"] is None
    assert format_figures(summary).endswith("at e4n7s0, its sequence number is not known yet")
