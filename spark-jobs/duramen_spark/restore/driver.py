"""One restore: find the archived log, write its segments to bookies, compare, then name it.

The restored log has an id of its own and no name until all is there: one `multi()` makes it live
and gives it the name. Until then its node says "deleted", so what a killed restore has left is
purged like any deleted log, bookies' copies included; the next restore begins anew. A name that
stands for a log restored from the same archive means: nothing to do.

Called by the command `duramen-spark restore`. Source: docs/archive.md, docs/protocol/archive.md.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from duramen.client.bookie_client import BookieClient
from duramen.config import LogConfig
from duramen.core.flexible.nodeset import list_serving
from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.placement.roster import choose_candidates, read_rows
from duramen.errors import DuramenError
from duramen.ids import LAST_LOG_ID, BookieId, EntryId, Epoch, LogId, Member, ledger_of
from duramen.runtime.cluster_node import FORMAT_FLEXIBLE
from duramen.runtime.http_client import PeerClient
from duramen.runtime.stores.metadata_store import (
    Conflict,
    ConflictKind,
    Create,
    Op,
    OutcomeUnknown,
    Set,
    create_parents,
)
from duramen.wire.metadata_json import (
    encode_log,
    encode_node,
    encode_segment,
    read_log,
    read_node,
)
from duramen_spark.connection import Connection
from duramen_spark.restore.entries import Reencoding
from duramen_spark.restore.placing import Placing, place_flexible, place_striped
from duramen_spark.restore.plan import (
    RESTORED_FROM,
    RestoreError,
    RestorePlan,
    add_segment,
    begin_log,
    make_segment,
)
from duramen_spark.restore.writer import RestoreWriter, WriteFailed, read_entries

_TRIES: Final = 3
"""Ensembles or nodesets that are tried for a segment, each without those that failed."""

OnProgress = Callable[[int, int], None]
"""Told of records that are restored, and of all."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What became of a restore."""

    namespace: str
    name: str
    log_id: LogId
    plan: RestorePlan
    is_new: bool
    """False: an earlier restore has made it."""

    def to_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        manifests = self.plan.manifests.values()
        return {
            "ok": True,
            "log": f"{self.namespace}/{self.name}",
            "log_id": str(self.log_id),
            "restored": self.is_new,
            **self.plan.source,
            "source_log_id": self.plan.source["log_id"],
            "first_seq_num": self.plan.start_seq_num,
            "next_seq_num": self.plan.start_seq_num
            + sum(one.totals.record_count for one in manifests),
            "segments": self.plan.last - self.plan.first + 1,
            "records": sum(one.totals.record_count for one in manifests),
            "entries": sum(one.entry_count for one in manifests),
        }


class Restore:
    """One restore into the connection's cluster.

    Args:
        config: of the new log.
        client, bookies: in the place of connections of its own, for tests.
    """

    def __init__(
        self,
        connection: Connection,
        plan: RestorePlan,
        *,
        namespace: str,
        name: str,
        config: LogConfig,
        on_progress: OnProgress = lambda *_: None,
        client: PeerClient | None = None,
        bookies: BookieClient | None = None,
    ) -> None:
        self._connection = connection
        self._plan = plan
        self._namespace = namespace
        self._name = name
        self._config = config
        self._on_progress = on_progress
        self._client = client or PeerClient(connection.security)
        self._bookies = bookies or BookieClient(connection.security)

    async def run(self) -> Restored:
        """Restore.

        Raises:
            RestoreError: bookies cannot take it, or it was purged meanwhile.
            DuramenError: `namespace_not_found`, `log_exists_with_other_config` (the name is
                another log's), `placement_impossible`, `cold_store_unavailable`.
            ColdDataError, NotThere: the archive is not whole: see `duramen-spark verify`.
            MetadataError: ZooKeeper gives no answer.
        """
        try:
            found = await self._find_named()
            if found is not None:
                return self._report(found.log_id, is_new=False)
            await self._check_format()
            log, version = await self._begin()
            done = 0
            total = sum(one.totals.record_count for one in self._plan.manifests.values())
            for epoch in range(self._plan.first, self._plan.last + 1):
                log, version = await self._restore_segment(log, version, Epoch(epoch))
                done = log.totals.record_count - self._plan.start_seq_num
                self._on_progress(done, total)
            await self._name_it(log, version)
            return self._report(log.log_id, is_new=True)
        finally:
            await self._client.close()
            await self._bookies.close()

    def _report(self, log_id: LogId, *, is_new: bool) -> Restored:
        return Restored(self._namespace, self._name, log_id, self._plan, is_new)

    # --- Nodes -----------------------------------------------------------------------------------

    async def _find_named(self) -> LogNode | None:
        """The log that has the name, if an earlier restore has made it.

        Raises:
            DuramenError: there is no such namespace, or the name is another log's.
        """
        store, paths = self._connection.metadata, self._connection.paths
        if await store.get(paths.namespace(self._namespace)) is None:
            detail = f"create namespace {self._namespace} first"
            raise DuramenError("namespace_not_found", detail, field="namespace")
        path = paths.name(self._namespace, self._name)
        await store.sync(path)
        stored = await store.get(path)
        if stored is None:
            return None
        log = await self._connection.nodes.read_log(LogId(int(read_node(stored.data)["log_id"])))
        origin = None if log is None else log.extra.get(RESTORED_FROM)
        if isinstance(origin, dict) and _identify(origin) == _identify(self._plan.source):
            return log
        detail = f"{self._namespace}/{self._name} is another log: restore it under another name"
        raise DuramenError("log_exists_with_other_config", detail, field="name")

    async def _begin(self) -> tuple[LogNode, int]:
        """Make the log's node, without a name."""
        store, paths = self._connection.metadata, self._connection.paths
        now_unix_ms = _now_unix_ms()
        bare = LogNode(
            log_id=await self._take_log_id(),
            namespace=self._namespace,
            name=self._name,
            config=self._config,
            deleted_unix_ms=now_unix_ms,
            created_unix_ms=now_unix_ms,
            nonce=secrets.token_hex(12),
            extra={RESTORED_FROM: self._plan.source},
        )
        log = begin_log(bare, self._plan)
        path = paths.log(log.log_id)
        await create_parents(store.commit, path)
        await store.commit([Create(path, encode_log(log)), Create(paths.segments(log.log_id), b"")])
        return log, 0

    async def _take_log_id(self) -> LogId:
        store, path = self._connection.metadata, self._connection.paths.cluster
        while True:
            stored = await store.get(path)
            if stored is None:
                raise DuramenError("metadata_unavailable", "the cluster node is missing")
            node = read_node(stored.data)
            log_id = int(node["last_log_id"]) + 1
            if log_id > LAST_LOG_ID:
                raise DuramenError("internal", "the cluster has used all its log ids")
            try:
                data = encode_node({**node, "last_log_id": log_id})
                await store.set(path, data, version=stored.version)
            except Conflict:
                continue
            return LogId(log_id)

    async def _commit(self, log: LogNode, ops: list[Op]) -> int:
        """Change the log's node, first of the operations; its version afterwards.

        Raises:
            RestoreError: the node is not what this restore has written: it was purged.
        """
        path = self._connection.paths.log(log.log_id)
        try:
            return (await self._connection.metadata.commit(ops))[0]
        except OutcomeUnknown:
            await self._connection.metadata.sync(path)
            stored = await self._connection.metadata.get(path)
            if stored is not None and read_log(stored.data).nonce == log.nonce:
                return stored.version
            raise
        except Conflict as conflict:
            if conflict.kind is ConflictKind.NODE_EXISTS:
                detail = f"{self._namespace}/{self._name} was made meanwhile"
                raise DuramenError("log_exists_with_other_config", detail) from conflict
            raise RestoreError("the unfinished log was purged meanwhile: begin again") from conflict

    async def _name_it(self, log: LogNode, version: int) -> None:
        """Make the log live and give it the name, at once."""
        paths = self._connection.paths
        live = log.undeleted(secrets.token_hex(12))
        name = Create(
            paths.name(self._namespace, self._name), encode_node({"log_id": str(log.log_id)})
        )
        await self._commit(live, [Set(paths.log(log.log_id), encode_log(live), version), name])

    # --- Segments --------------------------------------------------------------------------------

    async def _restore_segment(
        self, log: LogNode, version: int, epoch: Epoch
    ) -> tuple[LogNode, int]:
        """Write one segment, compare it, and add it to the log."""
        failed: set[Member] = set()
        reasons: list[str] = []
        for _ in range(_TRIES):
            try:
                placing, urls = await self._place(log, epoch, failed)
            except DuramenError as error:
                if not reasons:
                    raise
                reasons.append(str(error))
                break
            ledger_id = ledger_of(log.log_id, epoch)
            writer = RestoreWriter(self._client, urls, ledger_id, placing)
            try:
                length_bytes = await self._write(writer, log, epoch)
            except WriteFailed as error:
                failed.add(error.member)
                reasons.append(str(error))
                continue
            segment = make_segment(
                self._plan,
                epoch,
                log_id=log.log_id,
                start_seq_num=log.totals.record_count,
                placing=placing,
                length_bytes=length_bytes,
                unix_ms=_now_unix_ms(),
                nonce=secrets.token_hex(12),
            )
            return await self._add(log, version, segment)
        raise RestoreError(f"e{epoch} cannot be written: {'; '.join(reasons)}")

    async def _write(self, writer: RestoreWriter, log: LogNode, epoch: Epoch) -> int:
        """Write and compare the entries of a segment; bytes of their batches."""
        manifest = self._plan.manifests.get(epoch)
        if manifest is None or not manifest.files:
            return 0
        reencoding = Reencoding(ledger_of(log.log_id, epoch))
        groups = read_entries(self._connection.store, manifest, reencoding)
        while True:
            entries = await asyncio.to_thread(next, groups, None)
            if entries is None:
                break
            for entry in entries:
                await writer.add(entry)
        await writer.flush()
        await writer.verify(self._bookies, EntryId(manifest.last_entry))
        return manifest.totals.length_bytes + reencoding.drift_bytes

    async def _add(self, log: LogNode, version: int, segment: AnySegment) -> tuple[LogNode, int]:
        paths = self._connection.paths
        grown = add_segment(log, segment, unix_ms=_now_unix_ms(), nonce=secrets.token_hex(12))
        ops: list[Op] = [
            Set(paths.log(log.log_id), encode_log(grown), version),
            Create(paths.segment(log.log_id, segment.epoch), encode_segment(segment)),
        ]
        return grown, await self._commit(grown, ops)

    async def _place(
        self, log: LogNode, epoch: Epoch, failed: set[Member]
    ) -> tuple[Placing, dict[BookieId, str]]:
        """Who gets a segment, by the log's configuration, and where bookies are.

        Raises:
            DuramenError: `placement_impossible`.
        """
        paths = self._connection.paths
        available = await self._read_children(paths.available)
        registered = await self._read_children(paths.bookies)
        urls = {
            BookieId(name): str(node["data_url"])
            for name, node in available.items()
            if isinstance(node.get("data_url"), str)
        }
        rows = read_rows(available, registered, ())
        candidates = [
            one
            for one in choose_candidates(rows)
            if one.member.bookie in urls and one.member not in failed
        ]
        if not log.config.is_flexible:
            return place_striped(log, candidates), urls
        takers = {one.member for one in candidates}
        serving = [
            one for one in list_serving(rows) if Member(one.bookie, one.incarnation) in takers
        ]
        return place_flexible(log, ledger_of(log.log_id, epoch), serving), urls

    async def _check_format(self) -> None:
        """Whether the cluster takes a log of this configuration.

        Raises:
            DuramenError: `placement_impossible`: nobody has asked its processes whether they
                understand flexible logs.
        """
        stored = await self._connection.metadata.get(self._connection.paths.cluster)
        version = None if stored is None else read_node(stored.data).get("format")
        is_new = isinstance(version, int) and version >= FORMAT_FLEXIBLE
        if self._config.is_flexible and not is_new:
            detail = (
                "no flexible log was made in this cluster yet: create one first, which asks all "
                'its processes whether they understand it, or restore with --config \'{"copysets": '
                '"striped"}\''
            )
            raise DuramenError("placement_impossible", detail, field="copysets")

    async def _read_children(self, path: str) -> dict[str, dict[str, Any]]:
        nodes = {}
        for name in await self._connection.metadata.children(path) or ():
            stored = await self._connection.metadata.get(f"{path}/{name}")
            if stored is not None:
                nodes[name] = read_node(stored.data)
        return nodes


def _identify(source: Mapping[str, object]) -> tuple[object, object]:
    """Which log it was; how much of it was there then may be less than now."""
    return source.get("cluster"), source.get("log_id")


def _now_unix_ms() -> int:
    return time.time_ns() // 1_000_000
