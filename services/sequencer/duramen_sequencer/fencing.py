"""The command that sets a log's fencing token: queued among the appends, answered like one.

In the order of the appends it decides exactly which of them were sent under the old token. Setting
a token is idempotent, so whoever asked may ask again when the outcome is uncertain.

Called by `control`. Source: docs/protocol/rest.md "Fencing token".
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from duramen.core.sequencer.exactly_once.stamps import SetToken, TokenRecord
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.limits import APPEND_TIMEOUT_US, FENCING_TOKEN_BYTES_MAX
from duramen.runtime.sequencer.log_driver import now_us
from duramen.wire.control_record import encode_control
from duramen.wire.record_json import encode_tail
from duramen.wire.sequencer_calls import AppendedBatch, AppendResult, Redirect, encode_redirect
from duramen_sequencer.log_changes import read_log_id, read_tried
from duramen_sequencer.log_host import LogHost

_COMMAND_IDS = itertools.count(-1, -1)
"""Appends of frames count upwards from 1."""


async def set_token(host: LogHost, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out the control operation `fence`: `log_id`, `token`, perhaps `expected`.

    Returns:
        `tail`, the position from which the token is in force; or a redirect to the owner.

    Raises:
        DuramenError: `invalid_argument`, `fencing_token_mismatch`, and as an append.
    """
    log_id = read_log_id(request)
    command = SetToken(
        _read_token(request, "token"),
        None if request.get("expected") is None else _read_token(request, "expected"),
    )
    result = await submit(host, log_id, command, read_tried(request))
    match result:
        case DuramenError():
            raise result
        case Redirect():
            return encode_redirect(result)
        case AppendedBatch():
            tail = result.tail
            return {"tail": encode_tail(tail.seq_num, tail.timestamp_ms, tail.dlsn)}
        case _:
            raise AssertionError(f"no answer to a command: {result}")


async def submit(
    host: LogHost, log_id: LogId, command: SetToken, tried: tuple[str, ...] = ()
) -> AppendResult:
    """Queue the command at the log and wait for its fate."""
    fate: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    append = QueuedAppend(
        next(_COMMAND_IDS),
        encode_control(TokenRecord(command.token)),
        record_count=0,
        max_txid=None,
        max_timestamp_ms=0,
        deadline_us=now_us() + APPEND_TIMEOUT_US,
        command=command,
        tried=tried,
    )

    def answer(result: AppendResult) -> None:
        if not fate.done():
            fate.set_result(result)

    driver = host.submit(log_id, append, answer)
    if driver is not None:
        driver.flush()
    return await fate


def _read_token(request: dict[str, Any], field: str) -> str:
    token = request.get(field)
    if not isinstance(token, str) or len(token.encode()) > FENCING_TOKEN_BYTES_MAX:
        detail = f"{field}: a text of at most {FENCING_TOKEN_BYTES_MAX} bytes is expected"
        raise DuramenError("invalid_argument", detail, field=field)
    return token
