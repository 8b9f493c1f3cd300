"""Appends sent straight to one sequencer, past every proxy, over one connection that stays open.

A proxy follows redirects and turns its back on a process that does not answer; whoever asks whether
a *frozen* owner acknowledges anything must stay with it. Every append is noted in a chaos history,
so that the judge also knows what was promised here, and what was not.

Used by `test_frozen_owner`. Source: docs/protocol/wire.md "Sequencer: POST /s/append".
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pyreqwest.client import ClientBuilder
from pyreqwest.exceptions import PyreqwestError

from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.wire.record_batch import encode_batch
from duramen.wire.sequencer_calls import (
    Append,
    AppendedBatch,
    AppendResult,
    pack_appends,
    parse_results,
    take_frame,
)
from tests.chaos.history import HistoryFile, Line, hash_body, read_clock_ns

NAME: Final = "direct"
_DEADLINE_MS: Final = 60_000
"""Longer than any freeze: no answer is withheld because its time is over."""


class DirectAppends:
    """One writer of one log at one sequencer.

    Args:
        url: of the sequencer's data port.
        file: where the appends are noted.
    """

    def __init__(self, url: str, log: str, log_id: LogId, file: HistoryFile) -> None:
        self._url = f"{url}/s/append"
        self._log = log
        self._log_id = log_id
        self._file = file
        self._count = 0
        # No pings: the connection outlives the freeze, and what was sent is taken afterwards.
        self._client = ClientBuilder().http2_prior_knowledge().no_proxy().build()

    async def append(self) -> AppendResult | None:
        """One append; None: the connection broke, or the answer ended without a row."""
        number, self._count = self._count, self._count + 1
        body = f"{self._log}/{NAME}/{number}".encode()
        line: Line = {
            "t0_ns": read_clock_ns(), "op": "append", "proc": NAME, "log": self._log,
            "producer": f"{self._log}/{NAME}", "seq": number, "n": 1, "hash": [hash_body(body)],
            "tries": 1,
        }  # fmt: skip
        result = await self._send(encode_batch([body], timestamp_ms=1))
        match result:
            case AppendedBatch(start):
                line |= {"outcome": "ok", "dlsn": str(start.dlsn)}
                line |= {"start": start.seq_num, "end": start.seq_num + 1}
            case DuramenError():
                outcome = "info" if result.uncertain else "fail"
                line |= {"outcome": outcome, "code": result.code}
            case None:
                line |= {"outcome": "info", "code": "no_answer"}
            case _:
                line |= {"outcome": "fail", "code": "redirect"}
        self._file.write(line | {"t1_ns": read_clock_ns()})
        return result

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()

    async def _send(self, batch: bytes) -> AppendResult | None:
        frame = pack_appends([Append(self._log_id, _DEADLINE_MS, batch)])
        timeout = timedelta(milliseconds=2 * _DEADLINE_MS)
        request = self._client.post(self._url).body_bytes(frame).timeout(timeout).build()
        try:
            answer = bytearray(bytes(await (await request.send()).bytes()))
        except PyreqwestError:
            return None
        data = take_frame(answer)
        return None if data is None else parse_results(data)[0][1]
