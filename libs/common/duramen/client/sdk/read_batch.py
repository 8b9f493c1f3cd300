"""What a reader is given: consecutive records of one answer, as objects, bodies or an Arrow table.

Nothing is made before it is asked for: bodies are slices that decoding has made anyway, record
objects are made on the first use of `records`. `to_arrow` needs `duramen[arrow]`.
Made by `sdk.reader`. The columns of the table are those of the cold store
(docs/protocol/archive.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson

from duramen.client.records import Records
from duramen.client.sdk.values import Lost, Moved
from duramen.ids import Dlsn
from duramen.wire.record_json import DeliveredRecord as ReadRecord

__all__ = ["ReadBatch", "ReadRecord"]

if TYPE_CHECKING:
    import pyarrow


class ReadBatch:
    """Consecutive records, `len()` of them; iterating gives `ReadRecord` objects.

    Attributes:
        first: sequence number of the first record; where there is none, of the next one.
        end: sequence number after the last record: where reading goes on.
        moved_to: what was asked for is truncated, and this is where reading went on; the batch may
            be empty then.
        lost: records that were to come before these are lost for ever, as a person has accepted;
            the batch may be empty then.
        missing_count: so many sequence numbers before this batch belong to no record: a hole of an
            `out_of_order` log, or, with `lost`, records that are lost. The batch may be empty then.
        is_at_tail: nothing was behind these records when they were read.
    """

    __slots__ = (
        "__dict__", "_pieces", "end", "first", "is_at_tail", "lost", "missing_count", "moved_to",
    )  # fmt: skip

    def __init__(
        self,
        pieces: Sequence[Records],
        first: int,
        *,
        is_at_tail: bool,
        moved_to: Moved | None = None,
        lost: Lost | None = None,
        missing_count: int = 0,
    ) -> None:
        self._pieces = pieces
        self.first = first
        self.end = pieces[-1].end if pieces else first
        self.moved_to = moved_to
        self.lost = lost
        self.missing_count = missing_count
        self.is_at_tail = is_at_tail

    def __len__(self) -> int:
        return self.end - self.first

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[ReadRecord]:
        return iter(self.records)

    def __repr__(self) -> str:
        return f"<ReadBatch seq:{self.first} to seq:{self.end}>"

    @cached_property
    def bodies(self) -> list[bytes]:
        """The bodies alone."""
        return [body for piece in self._pieces for body in piece.bodies]

    @cached_property
    def records(self) -> list[ReadRecord]:
        """The records, with everything that belongs to them."""
        return [record for piece in self._pieces for record in _iterate(piece)]

    def to_arrow(self) -> pyarrow.Table:
        """The records as a table, one row each.

        Returns:
            A `pyarrow.Table`: `seq_num`, `epoch`, `entry`, `slot`, `txid` (null without),
            `timestamp_ms`, `headers` (list of name and value), `body`. Where something is missing
            before it the schema's metadata have `duramen.gap`: JSON with `kind` (`hole` or
            `lost`), `from` and `next`.

        Raises:
            ImportError: pyarrow is not installed: `pip install 'duramen[arrow]'`.

        Example:
            table = batch.to_arrow()
            print(table.num_rows)
        """
        try:
            import pyarrow as pa  # noqa: PLC0415 - large, and an extra
        except ImportError as error:
            raise ImportError(
                "to_arrow() needs pyarrow, which is not installed: pip install 'duramen[arrow]'"
            ) from error
        pair = pa.struct([("name", pa.binary()), ("value", pa.binary())])
        columns: dict[str, tuple[Any, Any]] = {
            "seq_num": (list(range(self.first, self.end)), pa.int64()),
            "epoch": (self._collect(lambda p: [p.placed.dlsn.epoch] * _count(p)), pa.int64()),
            "entry": (self._collect(lambda p: [p.placed.dlsn.entry] * _count(p)), pa.int64()),
            "slot": (self._collect(_slots), pa.int32()),
            "txid": (self._collect(_txids), pa.int64()),
            "timestamp_ms": (
                self._collect(lambda p: p.batch.timestamps_ms[p.skip : p.stop]),
                pa.int64(),
            ),
            "headers": (self._collect(_headers), pa.list_(pair)),
            "body": (self.bodies, pa.binary()),
        }
        return pa.table(
            [pa.array(values, kind) for values, kind in columns.values()],
            names=list(columns),
            metadata=self._describe_gap(),
        )

    def _describe_gap(self) -> dict[str, str] | None:
        gap = {"kind": "hole", "from": f"seq:{self.first - self.missing_count}"}
        gap["next"] = f"seq:{self.first}"
        if self.lost is not None:
            gap = {"kind": "lost", "from": self.lost.wanted, "next": self.lost.next}
        elif not self.missing_count:
            return None
        return {"duramen.gap": orjson.dumps(gap).decode()}

    def _collect(self, column: Any) -> list[Any]:
        return [value for piece in self._pieces for value in column(piece)]


def _count(piece: Records) -> int:
    return piece.stop - piece.skip


def _slots(piece: Records) -> range:
    slot = piece.placed.dlsn.slot
    return range(slot + piece.skip, slot + piece.stop)


def _txids(piece: Records) -> Sequence[int | None]:
    txids = piece.batch.txids
    return [None] * _count(piece) if txids is None else txids[piece.skip : piece.stop]


def _headers(piece: Records) -> list[list[dict[str, bytes]]]:
    headers = piece.batch.headers
    if headers is None:
        return [[]] * _count(piece)
    return [
        [{"name": name, "value": value} for name, value in pairs]
        for pairs in headers[piece.skip : piece.stop]
    ]


def _iterate(piece: Records) -> Iterator[ReadRecord]:
    placed, batch, skip, stop = piece
    epoch, entry, slot = placed.dlsn
    txids, headers = batch.txids, batch.headers
    for index in range(skip, stop):
        yield ReadRecord(
            placed.seq_num + index,
            Dlsn(epoch, entry, slot + index),
            None if txids is None else txids[index],
            batch.timestamps_ms[index],
            () if headers is None else headers[index],
            batch.bodies[index],
        )
