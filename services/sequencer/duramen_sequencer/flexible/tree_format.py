"""Raises the format of the cluster's tree before the first node is stored that needs it: to 2 for a
log that is flexible or acknowledges out of order, to 3 for a metadata log.

From then on no bookie or sequencer starts that knows a lower one alone. Who is registered already
is asked first: each must say in its node that it understands what will be written, and every bookie
must be there to say so. That is courtesy to a rolling upgrade, and no proof: who comes in between
refuses what it does not understand.

The format is never lowered. Called by `placement_operations` and the keepers of metadata logs.
Source: docs/protocol/flexible.md "Who may meet it", docs/protocol/metadata-logs.md "Who may meet
it", R3.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final, NamedTuple

from duramen.errors import DuramenError
from duramen.runtime.cluster_node import (
    FORMAT_AT_FIRST,
    FORMAT_FLEXIBLE,
    FORMAT_METADATA_LOGS,
)
from duramen.runtime.stores.metadata_store import (
    Conflict,
    MetadataStore,
    OutcomeUnknown,
    Rejected,
)
from duramen.units import agree
from duramen.wire.metadata_json import MetadataJsonError, Paths, encode_node, read_node
from duramen.wire.nodes.formats import understands

METADATA_LOGS: Final = "metadata_logs"
"""The need of keepers, as `check` and `ensure` name it."""

_TRIES: Final = 20


class _Need(NamedTuple):
    """What something new asks of a cluster."""

    what: str
    format: int
    processes: tuple[str, ...]
    """Formats that sequencers and proxies must understand."""

    bookies: tuple[str, ...]


_NEEDS: Final = {
    "copysets": _Need("flexible logs", FORMAT_FLEXIBLE, ("segment", "envelope"), ("envelope",)),
    "ack_mode": _Need(
        "logs with ack_mode out_of_order", FORMAT_FLEXIBLE, ("segment", "envelope"), ("envelope",)
    ),
    METADATA_LOGS: _Need("metadata logs", FORMAT_METADATA_LOGS, ("segment", "log"), ("log",)),
}
_NAMED_MAX: Final = 20
"""Processes that a refusal names; more are counted."""


class TreeFormat:
    """The format of one cluster, as this process knows it."""

    def __init__(self, store: MetadataStore, paths: Paths) -> None:
        self._store = store
        self._paths = paths
        self._format = 0
        self._node: dict[str, Any] = {}
        self._version = 0

    async def check(self, field: str) -> None:
        """Whether the tree takes such logs, or could; changes nothing.

        Args:
            field: what asks for it: `copysets`, `ack_mode` or `METADATA_LOGS`.

        Raises:
            DuramenError: `placement_impossible`, with who does not understand them;
                `metadata_unavailable`.
            MetadataError: the metadata store cannot be reached (retry).
        """
        if not await self._look(_NEEDS[field]):
            await self._check_everybody(field)

    async def ensure(self, field: str) -> None:
        """Have the tree take such logs.

        Args:
            field: as of `check`.

        Raises:
            DuramenError: as `check`; `metadata_unavailable`: it may be raised or not, the call may
                be repeated.
            MetadataError: as `check`.
        """
        need = _NEEDS[field]
        for _ in range(_TRIES):
            if await self._look(need):
                return
            await self._check_everybody(field)
            # Read again in any case: the node decides (R3).
            with contextlib.suppress(Conflict, OutcomeUnknown):
                await self._store.set(
                    self._paths.cluster,
                    encode_node({**self._node, "format": need.format}),
                    version=self._version,
                )
        raise DuramenError("metadata_unavailable", "the cluster node changes too often: try again")

    async def _look(self, need: _Need) -> bool:
        """Whether it was raised so far; once it was, nobody lowers it."""
        if self._format < need.format:
            await self._store.sync(self._paths.cluster)
            stored = await self._store.get(self._paths.cluster)
            if stored is None:
                raise DuramenError("metadata_unavailable", "the cluster node is missing")
            self._node, self._version = read_node(stored.data), stored.version
            self._format = _read_format(self._node)
        return self._format >= need.format

    async def _check_everybody(self, field: str) -> None:
        """Read anew: what is followed elsewhere may be a moment old."""
        paths, need = self._paths, _NEEDS[field]
        mute = []
        for kind, parent in (
            ("sequencer", paths.sequencers),
            ("write proxy", paths.write_proxies),
            ("read proxy", paths.read_proxies),
        ):
            nodes = await self._read_all(parent)
            mute += [
                f"{kind} {name}"
                for name in sorted(nodes)
                if not understands(nodes[name], need.processes)
            ]
        living = await self._read_all(paths.available)
        mute += [
            f"bookie {name}"
            for name in sorted(living)
            if not understands(living[name], need.bookies)
        ]
        await self._store.sync(paths.bookies)
        registered = await self._store.children(paths.bookies) or ()
        absent = [f"bookie {name}" for name in sorted(registered) if name not in living]
        if mute or absent:
            detail = f"the cluster takes no {need.what} yet: {_explain(mute, absent)}"
            raise DuramenError("placement_impossible", detail, field=field)

    async def _read_all(self, parent: str) -> dict[str, dict[str, Any]]:
        """Name → fields; a node that is not understood, or may not be read, says nothing."""
        await self._store.sync(parent)
        found: dict[str, dict[str, Any]] = {}
        for name in await self._store.children(parent) or ():
            try:
                stored = await self._store.get(f"{parent}/{name}")
                if stored is not None:
                    found[name] = read_node(stored.data)
            except (MetadataJsonError, Rejected):
                found[name] = {}
        return found


def _read_format(node: dict[str, Any]) -> int:
    """That of before where none is said."""
    version = node.get("format")
    return version if type(version) is int else FORMAT_AT_FIRST


def _explain(mute: list[str], absent: list[str]) -> str:
    parts = []
    if mute:
        parts.append(f"of a version that does not know them: {_name(mute)}; upgrade first")
    if absent:
        parts.append(
            f"not there, so that nobody knows its version: {_name(absent)}; start it, or have its "
            "loss accepted"
        )
    return "; ".join(parts)


def _name(processes: list[str]) -> str:
    shown = ", ".join(processes[:_NAMED_MAX])
    more = len(processes) - _NAMED_MAX
    return f"{shown} and {agree(f'{more} others')}" if more > 0 else shown
