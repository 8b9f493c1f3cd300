"""One question to the admin ports of all nodes that are registered, side by side and bounded.

Asked by the proxy's identity if it has one. A node that does not answer in time, or not as it
should, is named with no answer. Only reading: nothing is followed, remembered or repeated.

Called by `journals` and `security`. Source: docs/protocol/placement.md "Places and regions, live",
docs/protocol/turning-on.md "What is judged, and only counted".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen.runtime.security.admin_calls import AdminPortCalls
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore, Rejected
from duramen.wire.metadata_json import MetadataJsonError, read_node

T = TypeVar("T")

_ANSWER_S: Final = 2.0
_IN_FLIGHT_MAX: Final = 16


class RegisteredNode(NamedTuple):
    """A node as it registered.

    Attributes:
        parent: the node of ZooKeeper that it stands below.
        fields: empty where they cannot be read: it is as silent as its process.
    """

    parent: str
    name: str
    fields: Mapping[str, Any]


class NodeQuestions:
    """Questions to all nodes below some parents."""

    def __init__(
        self, store: MetadataStore, security: ProcessSecurity | None, parents: Sequence[str]
    ) -> None:
        self._store = store
        self._security = security
        self._parents = parents

    async def ask_all(
        self, path: str, read: Callable[[RegisteredNode, dict[str, Any]], T]
    ) -> list[tuple[RegisteredNode, T | None]]:
        """Each node with what it answers, in the order of the parents and of names.

        Args:
            path: of a route that answers with a JSON object.
            read: makes the answer of the object; raises `ValueError` where it is none.

        Raises:
            DuramenError: `metadata_unavailable`: who is there is not known.
        """
        try:
            nodes = await self._find()
        except MetadataError as error:
            raise DuramenError("metadata_unavailable", f"ZooKeeper: {error}") from error
        room = asyncio.Semaphore(_IN_FLIGHT_MAX)
        calls = AdminPortCalls(self._security)

        async def ask(node: RegisteredNode) -> T | None:
            async with room:
                try:
                    async with asyncio.timeout(_ANSWER_S):
                        told = await calls.ask_node(node.fields, path)
                    return read(node, told)
                except (PeerError, TimeoutError, ValueError):
                    return None

        try:
            answers = await asyncio.gather(*map(ask, nodes))
        finally:
            await calls.close()
        return list(zip(nodes, answers, strict=True))

    async def _find(self) -> list[RegisteredNode]:
        found = []
        for parent in self._parents:
            for name in sorted(await self._store.children(parent) or ()):
                try:
                    node = await self._store.get(f"{parent}/{name}")
                    fields = None if node is None else read_node(node.data)
                except (Rejected, MetadataJsonError):
                    fields = {}
                if fields is not None:  # else it went between the two reads
                    found.append(RegisteredNode(parent, name, fields))
        return found
