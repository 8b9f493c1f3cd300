"""The options of a read and of a write, parsed once; what is not known is refused by its name.

Spark hands them over as text, with names in lower case. Called by `source`.
Source: docs/protocol/rest.md "Texts"; docs/spark.md has the table of them.
"""

from __future__ import annotations

import difflib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NoReturn

from duramen.client.sdk.producer import BATCH_BYTES_DEFAULT, BATCH_BYTES_MOST
from duramen.client.sdk.values import find_codec
from duramen.errors import DuramenError
from duramen.texts import parse_log, parse_position
from duramen.units import MIB, parse_size_bytes
from duramen.wire.edge.batch_codec import Codec
from pyspark_duramen.proxy_place import ProxyPlace

PARTITION_BYTES: Final = 32 * MIB
"""A third of a second of reading: enough tasks to keep a few cores busy, few enough to start."""

PARTITION_RECORDS: Final = 100_000
"""Of a micro-batch, whose partitions may depend on its offsets alone."""

_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""What Spark's own calls put among the options of a stream."""


class OnTruncation(Enum):
    """What becomes of a read whose records are not there any more."""

    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Of a batch read or a streaming read.

    Attributes:
        proxy: best a read proxy.
        patterns: logs as `namespace/log`, in either part with `*`, `?` and `[…]`.
        start, until: positions; `until` is None for the tail (batch only).
        cold_store: url of the archive, where executors may read it.
        partition_bytes: of a batch read's tasks, about.
        partition_records: of a streaming read's tasks, exactly but for the last.
        records_per_trigger, bytes_per_trigger: of a micro-batch at most; None: no bound.
    """

    proxy: ProxyPlace
    patterns: tuple[str, ...]
    start: str = "head"
    until: str | None = None
    on_truncation: OnTruncation = OnTruncation.FAIL
    cold_store: str | None = None
    partition_bytes: int = PARTITION_BYTES
    partition_records: int = PARTITION_RECORDS
    records_per_trigger: int | None = None
    bytes_per_trigger: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """The options of a read.

        Raises:
            DuramenError: `invalid_argument`, `invalid_position`; `field` names the option.
        """
        given = _Given(options, _READ_NAMES)
        policy = given.get("on_truncation") or OnTruncation.FAIL.value
        if policy not in {"fail", "skip"}:
            _refuse("on_truncation", f"fail or skip, not {policy!r}")
        patterns = tuple(part.strip() for part in given.need("logs").split(",") if part.strip())
        for pattern in patterns:
            if pattern.count("/") != 1:
                _refuse("logs", f"{pattern!r}: write NAMESPACE/LOG, with a comma between several")
        if not patterns:
            _refuse("logs", "names no log")
        start, until = given.get("from") or "head", given.get("until")
        parse_position(start)
        if until is not None:
            parse_position(until)
        return cls(
            proxy=given.place(given.need("url")),
            patterns=patterns,
            start=start,
            until=until,
            on_truncation=OnTruncation(policy),
            cold_store=given.get("cold_store"),
            partition_bytes=given.size("partition_bytes") or PARTITION_BYTES,
            partition_records=given.count("partition_records") or PARTITION_RECORDS,
            records_per_trigger=given.count("max_records_per_trigger"),
            bytes_per_trigger=given.size("max_bytes_per_trigger"),
        )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Of a batch write or a streaming write.

    Attributes:
        proxy: best a write proxy.
        log: where every row goes; None: where its columns `namespace` and `log` say.
        write_id: what a repeated batch write is known by; made up where none is given.
        codec: of the record batches.
        batch_bytes: of bodies and headers in a record batch at most, unless one record is larger.
    """

    proxy: ProxyPlace
    log: tuple[str, str] | None
    write_id: str
    codec: Codec = Codec.NONE
    batch_bytes: int = BATCH_BYTES_DEFAULT

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """The options of a write.

        Raises:
            DuramenError: `invalid_argument`, `invalid_name`; `field` names the option.
        """
        given = _Given(options, _WRITE_NAMES)
        log = given.get("logs")
        write_id = given.get("write_id") or secrets.token_hex(12)
        if not (write_id.isascii() and write_id.isprintable()) or len(write_id) > 40:
            _refuse("write_id", "1 to 40 printable ASCII characters")
        batch_bytes = given.size("batch_bytes") or BATCH_BYTES_DEFAULT
        if not 0 < batch_bytes <= BATCH_BYTES_MOST:
            _refuse("batch_bytes", f"1 to {BATCH_BYTES_MOST} bytes")
        return cls(
            proxy=given.place(given.get("write_url") or given.need("url")),
            log=None if log is None else parse_log(log),
            write_id=write_id,
            codec=find_codec(given.get("compression")),
            batch_bytes=batch_bytes,
        )


_READ_NAMES: Final = (
    "url", "token_file", "ca_file", "logs", "from", "until", "on_truncation", "cold_store",
    "partition_bytes", "partition_records", "max_records_per_trigger", "max_bytes_per_trigger",
)  # fmt: skip
_WRITE_NAMES: Final = (
    "url", "write_url", "token_file", "ca_file", "logs", "write_id", "compression", "batch_bytes",
)  # fmt: skip


class _Given:
    """The options that were given, each of them known."""

    def __init__(self, options: Mapping[str, str], names: tuple[str, ...]) -> None:
        self._options = {name.lower(): value for name, value in dict(options).items()}
        for name in self._options:
            if name not in names and name not in _SPARKS_OWN:
                if name == "token":
                    _refuse(name, "Spark shows options to many: put it in a file, for token_file")
                if name == "path":
                    _refuse(name, "a log has no path: say `NAMESPACE/LOG` with option logs")
                near = difflib.get_close_matches(name, names, 1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
                _refuse(name, f"there is no such option: {hint}")

    def get(self, name: str) -> str | None:
        return self._options.get(name)

    def need(self, name: str) -> str:
        value = self._options.get(name)
        if not value:
            _refuse(name, "this option is needed")
        return value

    def place(self, url: str) -> ProxyPlace:
        return ProxyPlace(url, self.get("token_file"), self.get("ca_file"))

    def count(self, name: str) -> int | None:
        text = self._options.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit()) or not int(text):
            _refuse(name, f"a whole number from 1 on, not {text!r}")
        return int(text)

    def size(self, name: str) -> int | None:
        text = self._options.get(name)
        if text is None:
            return None
        try:
            size_bytes = parse_size_bytes(text)
        except ValueError as error:
            _refuse(name, str(error))
        if size_bytes < 1:
            _refuse(name, "at least one byte")
        return size_bytes


def _refuse(name: str, why: str) -> NoReturn:
    raise DuramenError("invalid_argument", f"option {name}: {why}", field=name)
