"""Control calls about namespaces: create, change, delete; any sequencer carries them out.

Each decides by compare-and-set on the namespace's node, so that several may race. That a namespace
is empty is not looked up but proved: ZooKeeper deletes the parent of its logs' names only while it
has no children, in the same `multi()`; a creation of a log that comes later finds no parent. Grants
and access tokens of the namespace go with it.

Called by `control`. Source: docs/protocol/wire.md "Identities", docs/protocol/metadata.md "Rules
for every change", R3, R4, docs/protocol/limits.md "What a refusal says".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from duramen.config import LogConfig, NamespaceConfig, parse_namespace_config
from duramen.config_changes import merge_fields
from duramen.errors import DuramenError
from duramen.runtime.credentials.access_tokens.issuing import list_namespaces, remove_token
from duramen.runtime.credentials.access_tokens.token_stock import TokenStock
from duramen.runtime.rights.grants_reading import read_grants_now
from duramen.runtime.stores.metadata_store import (
    Conflict,
    ConflictKind,
    Create,
    DeleteNode,
    MetadataError,
    MetadataStore,
    OutcomeUnknown,
    create_parents,
)
from duramen.texts import check_namespace
from duramen.wire.metadata_json import Paths, encode_node, read_node
from duramen_sequencer.log_changes import read_nonce

_TRIES: Final = 20

_LOG: Final = logging.getLogger(__name__)


class Namespaces:
    """The operations `create_namespace`, `change_namespace` and `delete_namespace`."""

    def __init__(self, store: MetadataStore, paths: Paths, stock: TokenStock) -> None:
        self._store = store
        self._paths = paths
        self._stock = stock

    async def create(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Ensure that a namespace is there.

        Raises:
            DuramenError: `log_exists_with_other_config`, or what is wrong with the request.
        """
        namespace = check_namespace(take_text(request, "namespace"))
        config = parse_namespace_config(take_object(request, "config"))
        path = self._paths.namespace(namespace)
        nonce = read_nonce(request)
        data = encode_node({"config": config.to_stored(), "nonce": nonce})
        names = self._paths.names_of(namespace)
        await create_parents(self._store.commit, path)
        await create_parents(self._store.commit, names)
        try:
            await self._store.commit((Create(path, data), Create(names, b"")))
        except (Conflict, OutcomeUnknown):
            # The node decides: ours by its nonce, or somebody else's (R3).
            found = await self._find(path)
            if found is None:
                raise
            if found[0]["nonce"] != nonce:
                there = parse_namespace_config(found[0]["config"])
                refuse_other(config, there, f"namespace {namespace}")
                return {"created": False, "config": config.to_json()}
        return {"created": True, "config": config.to_json()}

    async def change(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Change the fields of a namespace's configuration that `config` names.

        Returns:
            The whole configuration, and whether this call changed it.

        Raises:
            DuramenError: `namespace_not_found`, a field's fault; `metadata_unavailable`: it may be
                changed or not, the same call may be repeated.
        """
        namespace = check_namespace(take_text(request, "namespace"))
        patch = take_object(request, "config")
        path = self._paths.namespace(namespace)
        nonce = read_nonce(request)
        for _ in range(_TRIES):
            found = await self._find(path)
            if found is None:
                raise DuramenError(
                    "namespace_not_found", f"there is no namespace {namespace}", field="namespace"
                )
            node, version = found
            stored = parse_namespace_config(node["config"])
            config = parse_namespace_config(merge_fields(stored.to_json(), patch))
            is_ours = node.get("nonce") == nonce
            if is_ours or config == stored:
                return {"config": stored.to_json(), "changed": is_ours}
            data = encode_node({"config": config.to_stored(), "nonce": nonce}, node)
            try:
                await self._store.set(path, data, version=version)
            except (Conflict, OutcomeUnknown):
                continue  # read again: the node says whether it is ours (R3)
            return {"config": config.to_json(), "changed": True}
        raise _too_often(namespace)

    async def delete(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Delete a namespace that has no logs; one that is not there is deleted already.

        Returns:
            Whether this call deleted it.

        Raises:
            DuramenError: `namespace_not_empty`; `metadata_unavailable`: it may be deleted or not,
                the same call may be repeated; also while nobody understands the grants.
        """
        namespace = check_namespace(take_text(request, "namespace"))
        path, names = self._paths.namespace(namespace), self._paths.names_of(namespace)
        is_sent = False
        for _ in range(_TRIES):
            await self._store.sync(path)
            found, parent = await self._store.get(path), await self._store.get(names)
            if found is None or parent is None:
                return {"changed": is_sent}
            grants = await read_grants_now(self._store, self._paths.grants)
            try:
                await self._store.commit(
                    (
                        DeleteNode(names, parent.version),
                        DeleteNode(path, found.version),
                        grants.leave_out(namespace),
                        *(DeleteNode(token, 0) for token in await self._list_tokens(namespace)),
                    )
                )
            except Conflict as conflict:
                if conflict.kind is ConflictKind.NOT_EMPTY:
                    raise DuramenError(
                        "namespace_not_empty",
                        f"namespace {namespace} has logs: delete them first; the name of a "
                        "deleted log is free when the log is purged",
                        field="namespace",
                    ) from None
            except OutcomeUnknown:
                is_sent = True
            else:
                await self._remove_tokens(namespace)
                return {"changed": True}
        raise _too_often(namespace)

    async def _list_tokens(self, namespace: str) -> list[str]:
        """Nodes of access tokens that name the namespace."""
        seen = await self._stock.look()
        return [
            self._paths.access_token(token.token_id)
            for token in seen.tokens.values()
            if namespace in list_namespaces(token)
        ]

    async def _remove_tokens(self, namespace: str) -> None:
        """Remove what was issued while the namespace went: none is of its owners from now on."""
        try:
            for path in await self._list_tokens(namespace):
                await remove_token(self._store, path)
        except MetadataError as error:
            _LOG.warning("access tokens of %s may be left: %s", namespace, error)

    async def _find(self, path: str) -> tuple[dict[str, Any], int] | None:
        """The node as it is now, and its version."""
        await self._store.sync(path)
        stored = await self._store.get(path)
        return None if stored is None else (read_node(stored.data), stored.version)


async def refuse_more_logs(
    store: MetadataStore, paths: Paths, namespace: str, config: Mapping[str, Any]
) -> None:
    """See that the namespace has room for one more log: its names are counted, not proved to be
    few, so creations that race can pass the limit by as many as race.

    Args:
        config: as it is stored; the default counts where it is not understood.

    Raises:
        DuramenError: `too_many_logs`.
        MetadataError: the names cannot be counted now.
    """
    try:
        most = parse_namespace_config(config).limits.logs
    except DuramenError:
        # A newer version wrote it: its namespaces have logs made here while processes are replaced.
        most = NamespaceConfig().limits.logs
    if most is None:
        return
    names = await store.get(paths.names_of(namespace))
    if names is not None and names.children_count >= most:
        raise DuramenError(
            "too_many_logs",
            f"namespace {namespace} has {names.children_count} logs, and {most} are its limit: "
            "delete some (a deleted one counts until it is purged), or have limits.logs raised",
            field="limits.logs",
        )


def take_text(request: Mapping[str, Any], field: str) -> str:
    """A field that is a text.

    Raises:
        DuramenError: `invalid_argument`.
    """
    value = request.get(field)
    if not isinstance(value, str):
        raise DuramenError("invalid_argument", f"{field}: a text is expected", field=field)
    return value


def take_object(request: Mapping[str, Any], field: str) -> dict[str, Any]:
    """A field that is an object.

    Raises:
        DuramenError: `invalid_argument`.
    """
    value = request.get(field)
    if not isinstance(value, dict):
        raise DuramenError("invalid_argument", f"{field}: an object is expected", field=field)
    return value


def refuse_other(
    wanted: LogConfig | NamespaceConfig, found: LogConfig | NamespaceConfig, what: str
) -> None:
    """Refuse to create what is there with another configuration.

    Raises:
        DuramenError: `log_exists_with_other_config`.
    """
    if wanted != found:
        raise DuramenError(
            "log_exists_with_other_config",
            f"{what} exists with another configuration, which a PUT does not change",
        )


def _too_often(namespace: str) -> DuramenError:
    detail = f"namespace {namespace} changes too often, or ZooKeeper does not answer: try again"
    return DuramenError("metadata_unavailable", detail)
