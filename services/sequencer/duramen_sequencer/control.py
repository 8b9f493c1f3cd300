"""`POST /s/control`: create logs, and calls to other parts. JSON in, JSON out.

Any sequencer creates; names are made by compare-and-set, so that several creations race safely.
A log id comes from the cluster's counter and is never used again, also if the creation fails.

Called by the data server. Source: docs/protocol/wire.md "Identities" and "Sequencer: POST
/s/control", docs/protocol/metadata.md "The changes".
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from duramen.config import LogConfig, parse_log_config
from duramen.core.log_node import LogNode
from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.credentials.access_tokens.token_stock import TokenStock
from duramen.runtime.identity.names import Identity
from duramen.runtime.registry import refuse_unspoken
from duramen.runtime.security.permitted_roles import find_control_roles
from duramen.runtime.stores.metadata_store import (
    Conflict,
    ConflictKind,
    Create,
    MetadataError,
    MetadataStore,
    OutcomeUnknown,
    Set,
    create_parents,
)
from duramen.runtime.turning.tally import RefusalTally, WouldBeRefused
from duramen.texts import check_log_name, check_namespace
from duramen.wire.metadata_json import (
    MetadataJsonError,
    Paths,
    encode_log,
    encode_name,
    read_log,
    read_node,
)
from duramen_sequencer.log_changes import CheckConfig, read_nonce, take_any_config
from duramen_sequencer.log_ids import LogIds
from duramen_sequencer.namespaces import (
    Namespaces,
    refuse_more_logs,
    refuse_other,
    take_object,
    take_text,
)
from duramen_sequencer.rights.grant_operations import GrantOperations
from duramen_sequencer.rights.token_operations import TokenOperations

Operation = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""From a request, a JSON object, to its answer; raises DuramenError."""


class _TakenName(NamedTuple):
    """A name's log, and the name's node."""

    log: LogNode
    version: int
    fields: dict[str, Any]


class Control:
    """Administrative calls of one sequencer.

    Args:
        others: operations of other parts, by name.
        check_config: raises DuramenError for a configuration that cannot work on this cluster.
        tally: counts who would be refused for his role, and is served, but for what is done in a
            caller's name; None: he is refused.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        others: Mapping[str, Operation],
        check_config: CheckConfig = take_any_config,
        *,
        tally: RefusalTally | None = None,
    ) -> None:
        self._tally = tally
        self._check_config = check_config
        self._store = store
        self._paths = paths
        self._log_ids = LogIds(store, paths)
        stock = TokenStock(store, paths)
        namespaces = Namespaces(store, paths, stock)
        self._of_known_callers: dict[str, Operation] = {
            **GrantOperations(store, paths, stock).by_name,
            **TokenOperations(store, paths, stock).by_name,
        }
        self._operations: dict[str, Operation] = {
            "create_namespace": namespaces.create,
            "change_namespace": namespaces.change,
            "delete_namespace": namespaces.delete,
            "create_log": self._create_log,
            **self._of_known_callers,
            **others,
        }

    async def handle(self, body: bytes, caller: Identity | None = None) -> dict[str, Any]:
        """Carry out one operation.

        Args:
            caller: who asks; None: nobody is asked who it is.

        Raises:
            DuramenError: refused, or the metadata store cannot be reached (retry).
        """
        try:
            request = json.loads(body)
            name = request["op"]
            operation = self._operations[name]
        except (ValueError, KeyError, TypeError):
            known = ", ".join(self._operations)
            raise DuramenError(
                "invalid_argument", f"expected a JSON object with op = {known}", field="op"
            ) from None
        if caller is None and name in self._of_known_callers:
            # It would be written in anybody's name, and count once the cluster asks.
            raise DuramenError(
                "forbidden", f"{name}: nobody is known here until this has --security migrate or on"
            )
        if caller is not None and caller.role not in find_control_roles(name):
            refusal = DuramenError("forbidden", f"a {caller.role} may not ask for {name}")
            if self._tally is None or name in self._of_known_callers:
                # Also while it is but counted: the name that it gives outlives the turn to `on`.
                raise refusal
            who, why = str(caller), refusal.detail
            self._tally.note(WouldBeRefused("data", who, "/s/control", "role", why, name))
        try:
            return await operation(request)
        except MetadataError as error:
            raise DuramenError("metadata_unavailable", str(error)) from error
        except MetadataJsonError as error:
            raise DuramenError("internal", str(error)) from error

    async def _create_log(self, request: dict[str, Any]) -> dict[str, Any]:
        namespace = check_namespace(take_text(request, "namespace"))
        name = check_log_name(take_text(request, "log"))
        config = parse_log_config(take_object(request, "config"))
        found = await self._store.get(self._paths.namespace(namespace))
        if found is None:
            raise DuramenError(
                "namespace_not_found", f"create namespace {namespace} first", field="namespace"
            )
        path = self._paths.name(namespace, name)
        what = f"log {namespace}/{name}"
        nonce = read_nonce(request)
        taken = await self._read_name(path)
        if taken is not None and not taken.log.is_deleted:
            return _known(taken.log, config, what, nonce)
        if taken is None:
            of_namespace = read_node(found.data).get("config", {})
            await refuse_more_logs(self._store, self._paths, namespace, of_namespace)
        if config.compression != "none":
            await refuse_unspoken(self._store, self._paths, "compression")
        log_id = await self._log_ids.take()
        try:
            await self._check_config(config, log_id)
        except BaseException:
            # Who tries it again and again would use up the ids.
            self._log_ids.give_back(log_id)
            raise
        log = LogNode(
            log_id=log_id,
            namespace=namespace,
            name=name,
            config=config,
            created_unix_ms=time.time_ns() // 1_000_000,
            nonce=nonce,
            config_nonce=nonce,
        )
        try:
            await self._write_log(log, path, taken)
        except (Conflict, OutcomeUnknown):
            taken = await self._read_name(path)
            if taken is None or taken.log.is_deleted:
                raise
            if taken.log.log_id != log.log_id:
                return _known(taken.log, config, what, nonce)
        return {"created": True, "log_id": str(log.log_id), "config": config.to_json()}

    async def _write_log(self, log: LogNode, name_path: str, replaced: _TakenName | None) -> None:
        """Make the log's nodes, and take its name: a free one, or that of a deleted log.

        An undeletion changes the name in the same `multi()`, so its version is proof enough.
        """
        path = self._paths.log(log.log_id)
        take_name: Create | Set = Create(name_path, encode_name(log.log_id))
        if replaced is not None:
            # From now on the deleted log cannot have the name back.
            data = encode_name(log.log_id, replaced.fields, replaced=replaced.log.log_id)
            take_name = Set(name_path, data, replaced.version)
        ops = (
            Create(path, encode_log(log)),
            Create(self._paths.segments(log.log_id), b""),
            take_name,
        )
        try:
            await self._store.commit(ops)
        except Conflict as conflict:
            if (conflict.kind, conflict.path) != (ConflictKind.NO_NODE, path):
                raise
            # The first log of 65,536 that share a parent.
            await create_parents(self._store.commit, path)
            await self._store.commit(ops)

    async def _read_name(self, path: str) -> _TakenName | None:
        """What a name stands for; the name is read before its log."""
        await self._store.sync(path)
        name = await self._store.get(path)
        if name is None:
            return None
        fields = read_node(name.data)
        log_id = LogId(int(fields["log_id"]))
        stored = await self._store.get(self._paths.log(log_id))
        if stored is None:
            raise DuramenError("metadata_unavailable", f"the node of log {log_id} is missing")
        return _TakenName(read_log(stored.data), name.version, fields)


def _known(log: LogNode, wanted: LogConfig, what: str, nonce: str) -> dict[str, Any]:
    refuse_other(wanted, log.config, what)
    # An earlier try of the same call may have made it.
    is_ours = log.config_nonce == nonce
    return {"created": is_ours, "log_id": str(log.log_id), "config": wanted.to_json()}
