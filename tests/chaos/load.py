"""The load of a chaos run, a process of its own: writers, readers, and a history of all they saw.

    python -m tests.chaos.load OPTIONS      (one JSON argument, the fields of `LoadOptions`)

Each writer appends small batches, one after the other, each told to one write proxy and after a
failure to the next. Readers start at random places, follow for a while, ask for the tail, begin
anew. Without producers an append of unknown fate stays `info`; with them it is sent again, the same
batch with the same sequence, until the answer is definite.

A load of quiet logs has writers that append now and then, and readers that wait (`waiters`).

Progress goes to stdout, a line each half second, with the violations that were seen. "finish" on
stdin (or its end) lets the writers settle what is open and append a last word to each log through
every write proxy.
Called by `run`. Source: docs/testing.md "Histories".
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import orjson
import uvloop

from duramen.client.credentials.credential import make_credential
from duramen.client.records import open_batches
from duramen.client.rest_client import Appended, RestClient
from duramen.errors import DuramenError, Retry
from duramen.runtime.http_client import PeerError, UnreachableError
from duramen.wire.record_batch import BatchProducer, encode_batch
from tests.chaos.history import (
    HistoryFile,
    Line,
    encode_batches,
    find_gaps,
    hash_body,
    history_path,
    read_clock_ns,
)
from tests.chaos.shown_token import show_token
from tests.chaos.waiters import Waiters
from tests.chaos.waiting import wait_at_most
from tests.chaos.watch import Watch

NAMESPACE: Final = "default"
SETTLE_S: Final = 60.0
"""How long an open append is tried again, and a last word, after the faults have ended."""

_APPEND_TIMEOUT_S: Final = 12.0
"""A little longer than a server takes at most: an answer that says why is worth more than none."""

_AFTER_FAILURE_S: Final = 0.1
_FIRST_THINK_MS: Final = 1_000
"""The first append of a log comes within about a second, however quiet it is from then on."""

_PROGRESS_S: Final = 0.5
_READ_BYTES: Final = 64 << 10
_READ_WAIT_MS: Final = 300
_READS_PER_ROUND: Final = 25
_RECORD_COUNT_MAX: Final = 3
_TO_TAIL_COUNT: Final = 1_000
"""A reader that was told the tail reads so many records before it at most."""

_KEPT_COUNT: Final = 500
"""Truncation leaves so many records at most: readers often meet a prefix that goes."""


@dataclass(frozen=True)
class LoadOptions:
    """What the load does, and where it writes its histories.

    Attributes:
        part: names the load in the names of its histories, where a run has several.
        think_ms_of: the pace of single logs, in place of `think_ms`.
        has_waiters: readers of every form wait at the end of every log.
        token_file: of the token that is shown, which may become another one; none: nobody asks.
        ack_mode: of the logs: whether what is acknowledged is shown, and holes may be met.
    """

    folder: str
    write_urls: list[str]
    read_urls: list[str]
    logs: list[str]
    writers: int
    readers: int
    seed: int
    think_ms: int = 40
    record_bytes: int = 120
    has_producers: bool = False
    truncates: bool = False
    ack_mode: str = "ordered"
    part: str = "load"
    think_ms_of: dict[str, int] = field(default_factory=dict)
    has_waiters: bool = False
    token_file: str | None = None

    @property
    def is_ordered(self) -> bool:
        """Whether what is acknowledged is shown, and nothing is a hole."""
        return self.ack_mode == "ordered"


class Load:
    """All writers and readers of the process."""

    def __init__(self, options: LoadOptions) -> None:
        self.options = options
        self.stop = asyncio.Event()
        self.deadline: float | None = None
        self.acked: dict[str, int] = dict.fromkeys(options.logs, 0)
        self.ends: dict[str, int] = dict.fromkeys(options.logs, 0)
        self.appends: dict[str, int] = dict.fromkeys(options.logs, 0)
        self.reads: dict[str, int] = dict.fromkeys(options.logs, 0)
        self.codes: dict[str, int] = {}
        self._watch = Watch(is_ordered=options.is_ordered)
        shown = make_credential(token_file=options.token_file)
        self.writers = [RestClient(url, credential=shown) for url in options.write_urls]
        self.readers = [RestClient(url, credential=shown) for url in options.read_urls]
        folder = Path(options.folder)
        self._files = {
            log: HistoryFile(history_path(folder, log, options.part)) for log in options.logs
        }

    async def run(self) -> int:
        """Until told to finish; 0 when every log took its last words."""
        options = self.options
        logs = options.logs
        writers = [
            Writer(self, f"w{n}", logs[n % len(logs)], n).run() for n in range(options.writers)
        ]
        readers = [
            Reader(self, f"r{n}", logs[n % len(logs)], n).run() for n in range(options.readers)
        ]
        truncaters = [Truncater(self, log, n) for n, log in enumerate(logs) if options.truncates]
        helpers = [asyncio.create_task(work) for work in (self._report(), self._listen())]
        waiters = Waiters(
            NAMESPACE, options.read_urls, self.note, meets_holes=not options.is_ordered,
            token_file=options.token_file,
        )  # fmt: skip
        if options.has_waiters:
            waiters.start(logs)
        try:
            await asyncio.gather(*writers, *readers, *(one.run() for one in truncaters))
            last = (self._say_last_words(log) for log in logs)
            is_done = all(await asyncio.gather(*last))
            await waiters.catch_up(self.ends, SETTLE_S)
        finally:
            await waiters.stop()
            for task in helpers:
                task.cancel()
            for file in self._files.values():
                file.close()
            for client in (*self.writers, *self.readers):
                await client.close()
        self._print()
        return 0 if is_done else 1

    def note(self, line: Line) -> None:
        """Put an operation into the history of its log."""
        self._files[line["log"]].write(line)
        self._watch.take(line)
        if line["op"] == "append" and line["outcome"] == "ok":
            self.appends[line["log"]] += 1
            self.acked[line["log"]] = line["t1_ns"]
            self.ends[line["log"]] = max(self.ends[line["log"]], line["end"])
        elif line["outcome"] == "ok":
            self.reads[line["log"]] += line["op"] == "read"
        elif line["op"] == "truncate":
            self.count(line["code"])

    def note_refusal(self, log: str, name: str, error: Exception) -> None:
        """A read or a tail was refused; for who asked, that is a violation."""
        if isinstance(error, DuramenError):
            self._watch.take(
                {"op": "read", "outcome": "fail", "log": log, "proc": name, "code": error.code}
            )

    def count(self, code: str) -> None:
        """Count an answer, or its absence, that did not acknowledge."""
        self.codes[code] = self.codes.get(code, 0) + 1

    async def _say_last_words(self, log: str) -> bool:
        """One more append through every write proxy: the log is alive, whoever is asked."""
        words = [Writer(self, f"last{i}", log, i) for i in range(len(self.writers))]
        return all([await word.append_once() for word in words])

    async def _listen(self) -> None:
        """Wait for the word on stdin."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        await reader.readline()
        self.deadline = loop.time() + SETTLE_S
        self.stop.set()

    async def _report(self) -> None:
        while True:
            await wait_at_most(_PROGRESS_S)
            for file in self._files.values():
                file.flush()
            self._print()

    def _print(self) -> None:
        line = {
            "acked_ns": self.acked, "ends": self.ends, "codes": self.codes,
            "appends": self.appends, "reads": self.reads,
            "violations": self._watch.format(),
        }  # fmt: skip
        sys.stdout.buffer.write(orjson.dumps(line) + b"\n")
        sys.stdout.buffer.flush()


class Writer:
    """One producer of one log."""

    def __init__(self, load: Load, name: str, log: str, index: int) -> None:
        self._load = load
        self._name = name
        self._log = log
        self._proxy = index
        self._number = 0
        self._sequence = 0
        self._rng = random.Random(f"{load.options.seed}/{name}/{log}")

    async def run(self) -> None:
        """Append until told to stop."""
        while not self._load.stop.is_set():
            think_s = self._think_ms() / 1000 * self._rng.uniform(0.5, 1.5)
            if not await wait_at_most(think_s, self._load.stop):
                await self._append()

    def _think_ms(self) -> int:
        options = self._load.options
        think_ms = options.think_ms_of.get(self._log, options.think_ms)
        return think_ms if self._number else min(think_ms, _FIRST_THINK_MS)

    async def append_once(self) -> bool:
        """Append until acknowledged once, within the time for settling; whether it was."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_S
        while loop.time() < deadline:
            if await self._append():
                return True
        return False

    def _bodies(self) -> list[bytes]:
        size = self._load.options.record_bytes
        head = f"{self._log}/{self._name}/{self._number}"
        count = self._rng.randint(1, _RECORD_COUNT_MAX)
        return [f"{head}/{place} ".encode().ljust(size, b".") for place in range(count)]

    async def _append(self) -> bool:
        """One append from its first try to its last answer, as one line of the history."""
        bodies = self._bodies()
        name = f"{self._log}/{self._name}"
        producer = (
            BatchProducer(name, 0, self._sequence) if self._load.options.has_producers else None
        )
        batch = encode_batch(bodies, timestamp_ms=1, producer=producer)
        line: Line = {
            "t0_ns": read_clock_ns(), "op": "append", "proc": self._name, "log": self._log,
            "producer": name, "seq": self._number, "n": len(bodies),
            "hash": [hash_body(body) for body in bodies], "outcome": "fail", "tries": 0,
        }  # fmt: skip
        self._number += 1
        while True:
            line["tries"] += 1
            done, code, is_uncertain = await self._try(batch)
            if done is not None:
                line |= {"outcome": "ok", "start": done.start, "end": done.end, "dlsn": done.dlsn}
                self._sequence += 1
                break
            line["code"] = code
            self._load.count(code)
            if is_uncertain:
                line["outcome"] = "info"
            await wait_at_most(_AFTER_FAILURE_S)
            if producer is None or not self._may_try_again(code):
                break
        line["t1_ns"] = read_clock_ns()
        self._load.note(line)
        return done is not None

    def _may_try_again(self, code: str) -> bool:
        """With a producer: whatever is not refused for good, until the time for settling ends."""
        deadline = self._load.deadline
        if deadline is not None and asyncio.get_running_loop().time() > deadline:
            return False
        return code in _OWN_CODES or DuramenError(code, "").kind.retry is not Retry.NO

    async def _try(self, batch: bytes) -> tuple[Appended | None, str, bool]:
        """The answer, or the code and whether the append may have happened."""
        client = self._load.writers[self._proxy % len(self._load.writers)]
        try:
            async with asyncio.timeout(_APPEND_TIMEOUT_S):
                return await client.append(NAMESPACE, self._log, batch), "", False
        except DuramenError as error:
            outcome = (None, error.code, error.uncertain)
        except UnreachableError:
            outcome = (None, "unreachable", False)
        except TimeoutError:
            outcome = (None, "no_answer", True)
        self._proxy += 1
        return outcome


_OWN_CODES: Final = ("unreachable", "no_answer")
"""What the client concludes by itself, beside the codes of answers."""


class Reader:
    """One reader of one log, which begins anew again and again."""

    def __init__(self, load: Load, name: str, log: str, index: int) -> None:
        self._load = load
        self._name = name
        self._log = log
        self._proxy = index
        self._rng = random.Random(f"{load.options.seed}/{name}")

    async def run(self) -> None:
        """Read until told to stop."""
        while not self._load.stop.is_set():
            try:
                async with asyncio.timeout(_APPEND_TIMEOUT_S):
                    await self._read_round()
            except (DuramenError, PeerError, TimeoutError) as error:
                self._load.note_refusal(self._log, self._name, error)
                self._proxy += 1
                await wait_at_most(_AFTER_FAILURE_S, self._load.stop)

    async def _read_round(self) -> None:
        client = self._load.readers[self._proxy % len(self._load.readers)]
        end = self._load.ends[self._log]
        # Half of the readers begin near the tail, where things happen.
        low = 0 if self._rng.random() < 0.5 else max(0, end - 50)
        position = self._rng.choice(["head", "tail"] + [f"seq:{self._rng.randint(low, end)}"] * 6)
        for _ in range(self._rng.randint(1, _READS_PER_ROUND)):
            if self._load.stop.is_set():
                return
            position = await self._read(client, position)
        line: Line = {"t0_ns": read_clock_ns(), "op": "tail", "proc": self._name, "log": self._log}
        line["end"] = tail = await client.find_tail(NAMESPACE, self._log)
        if not self._load.options.is_ordered:
            mark = await client.show_tail(NAMESPACE, self._log, "acknowledged")
            line["acknowledged"] = mark["seq_num"]
        self._load.note(line | {"t1_ns": read_clock_ns(), "outcome": "ok", "n": 0})
        await self._read_to(client, tail)

    async def _read_to(self, client: RestClient, tail: int) -> None:
        """Read up to the tail that was told: the judge sees whether it can be come to (L1)."""
        position = f"seq:{max(0, tail - self._rng.randint(1, _TO_TAIL_COUNT))}"
        while tail > int(position.removeprefix("seq:")) and not self._load.stop.is_set():
            position = await self._read(client, position)

    async def _read(self, client: RestClient, position: str) -> str:
        line, following = await read_once(client, self._log, position, self._name)
        if line is not None:
            self._load.note(line)
            await wait_at_most(self._load.options.think_ms / 1000, self._load.stop)
        return following


class Truncater:
    """Lets the beginning of one log go, from time to time."""

    def __init__(self, load: Load, log: str, index: int) -> None:
        self._load = load
        self._log = log
        self._url = load.options.write_urls[index % len(load.options.write_urls)]
        self._rng = random.Random(f"{load.options.seed}/truncate/{log}")

    async def run(self) -> None:
        """Truncate until told to stop."""
        async with httpx.AsyncClient(timeout=_APPEND_TIMEOUT_S) as http:
            while not await wait_at_most(self._rng.uniform(2, 6), self._load.stop):
                end = self._load.ends[self._log] - self._rng.randint(0, _KEPT_COUNT)
                if end > 0:
                    await self._truncate(http, end)

    async def _truncate(self, http: httpx.AsyncClient, end: int) -> None:
        line: Line = {
            "t0_ns": read_clock_ns(), "op": "truncate", "proc": "truncater", "log": self._log,
            "end": end, "n": 0,
        }  # fmt: skip
        url = f"{self._url}/v1/namespaces/{NAMESPACE}/logs/{self._log}:truncate"
        try:
            shown = show_token(self._load.options.token_file)
            answer = await http.post(url, json={"to": f"seq:{end}"}, headers=shown)
        except httpx.HTTPError:
            line |= {"outcome": "info", "code": "no_answer"}
        else:
            status = answer.status_code
            line["outcome"] = "ok" if status == 200 else "info" if status >= 500 else "fail"
            line["code"] = str(status)
        self._load.note(line | {"t1_ns": read_clock_ns()})


async def read_once(
    client: RestClient,
    log: str,
    position: str,
    name: str,
    *,
    most_bytes: int = _READ_BYTES,
    wait_ms: int = _READ_WAIT_MS,
) -> tuple[Line | None, str]:
    """One read as a line (None: an empty one that says nothing), and where to go on.

    Raises:
        As `RestClient.read`.
    """
    asked = int(position[4:]) if position.startswith("seq:") else None
    line: Line = {"t0_ns": read_clock_ns(), "op": "read", "proc": name, "log": log}
    answer = await client.read(NAMESPACE, log, position, most_bytes=most_bytes, wait_ms=wait_ms)
    following = int(answer.next_position.removeprefix("seq:"))
    batches = encode_batches(list(open_batches(answer.batches, first=asked)))
    first = batches[0][1] if batches else following
    start = first if answer.first_seq_num is None else min(first, answer.first_seq_num)
    line |= {
        "t1_ns": read_clock_ns(), "from": asked, "batches": batches, "tail": answer.is_at_tail,
        "start": start, "end": following, "n": sum(len(batch[2]) for batch in batches),
        "outcome": "ok",
    }  # fmt: skip
    if gaps := find_gaps(start, batches, following):
        line["gaps"] = gaps
    is_worth_it = bool(batches or gaps) or answer.is_at_tail
    return line if is_worth_it else None, answer.next_position


def main() -> int:
    """Run the load until it is told to finish."""
    options = LoadOptions(**orjson.loads(sys.argv[1]))
    with suppress(KeyboardInterrupt):
        return uvloop.run(_run(options))
    return 130


async def _run(options: LoadOptions) -> int:
    return await Load(options).run()


def format_options(options: LoadOptions) -> str:
    """The argument of the command line."""
    return orjson.dumps(dataclasses.asdict(options)).decode()


if __name__ == "__main__":
    sys.exit(main())
