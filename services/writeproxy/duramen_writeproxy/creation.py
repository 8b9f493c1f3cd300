"""Control calls: creation of namespaces and logs, by any live sequencer, and what an owner does.

The same request gives the same result, so unlike an append it is sent again to the next sequencer
when one does not answer; a redirect is followed at once. The proxy itself writes nothing to
ZooKeeper.

An append to a log that does not exist creates it where its namespace has `auto_create`, with the
defaults; several proxies may do so at once, and one of them makes it.

Called by `rest`, `append_route` and `life.routes`. Source: 03-api "REST v1", 01-protocol section 2.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import orjson

from duramen.config import LogConfig, parse_namespace_config
from duramen.errors import ERRORS, PROBLEM_FACTS, BeyondTailError, DuramenError
from duramen.ids import LogId
from duramen.limits import APPEND_TIMEOUT_US, RETRY_DELAY_MAX_US, RETRY_DELAY_US
from duramen.runtime.http_client import PeerClient, PeerError
from duramen.runtime.metadata_store import MetadataError, MetadataStore
from duramen.units import SECOND
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_node
from duramen_writeproxy.appends import REDIRECT_COUNT_MAX
from duramen_writeproxy.names import NameCache
from duramen_writeproxy.routing import Router, Target

_CALL_TIMEOUT_US: Final = 5 * SECOND
"""One sequencer's time for one creation: a few writes to ZooKeeper."""

_RETRIED: Final = ("log_unavailable", "server_draining")


class Creator:
    """Forwards creations to `/s/control`."""

    def __init__(self, router: Router, peers: PeerClient) -> None:
        self._router = router
        self._peers = peers

    async def create_namespace(self, namespace: str, config: dict[str, Any]) -> dict[str, Any]:
        """Ensure a namespace; the sequencer's answer has `created` and `config`.

        Raises:
            DuramenError: the sequencer's refusal, `log_unavailable` when none answers.
        """
        message = {"op": "create_namespace", "namespace": namespace, "config": config}
        return await self.ask(namespace, message, ("created", "config"))

    async def create_log(self, namespace: str, log: str, config: dict[str, Any]) -> dict[str, Any]:
        """Ensure a log; the sequencer's answer has `created`, `log_id` and `config`.

        Raises:
            DuramenError: the sequencer's refusal, `log_unavailable` when none answers.
        """
        message = {"op": "create_log", "namespace": namespace, "log": log, "config": config}
        return await self.ask(f"{namespace}/{log}", message, ("created", "log_id", "config"))

    async def reconfigure(
        self, key: str, log_id: LogId, patch: dict[str, Any], config_version: int | None
    ) -> dict[str, Any]:
        """Change the fields that `patch` names; gives `config`, `config_version` and `changed`.

        Raises:
            DuramenError: the sequencer's refusal, `log_unavailable` when none answers.
        """
        message: dict[str, Any] = {"op": "reconfigure", "log_id": str(log_id), "config": patch}
        if config_version is not None:
            message["config_version"] = config_version
        return await self.ask(key, message, ("config", "config_version", "changed"))

    async def roll(self, key: str, log_id: LogId) -> dict[str, Any]:
        """Begin to close the log's open segment; gives its `epoch`, None if there is none.

        Raises:
            DuramenError: the sequencer's refusal, `log_unavailable` when none answers.
        """
        return await self.ask(key, {"op": "roll", "log_id": str(log_id)}, ("epoch",))

    async def suspend_rolling(self, *, is_suspended: bool) -> dict[str, Any]:
        """Tell every sequencer; gives the `under_way` of each, None where it did not answer."""
        message = {"op": "suspend", "rolling": is_suspended}

        async def ask(target: Target) -> int | None:
            try:
                answer = await self._ask_one(target, message, ("under_way",))
            except (PeerError, DuramenError):
                return None
            return int(answer["under_way"])

        targets = self._router.rank("")
        answers = await asyncio.gather(*(ask(target) for target in targets))
        names = [target.sequencer_id for target in targets]
        return dict(zip(names, answers, strict=True))

    async def ask(
        self, key: str, message: dict[str, Any], fields: tuple[str, ...]
    ) -> dict[str, Any]:
        """Carry out a control operation that may be sent more than once.

        Args:
            key: `namespace/log`, or a namespace: whom the hash names for it is asked first.
            fields: what a usable answer has.

        Raises:
            DuramenError: the sequencer's refusal, `log_unavailable` when none answers.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + APPEND_TIMEOUT_US / SECOND
        pause_us = RETRY_DELAY_US
        while True:
            last = DuramenError("log_unavailable", "no sequencer can be reached")
            for target in self._router.rank(key):
                try:
                    return await self._ask_owner(target, message, fields)
                except PeerError as error:
                    last = DuramenError("log_unavailable", f"no sequencer answered: {error}")
                except DuramenError as error:
                    if error.code not in _RETRIED:
                        raise
                    last = error
            if loop.time() + pause_us / SECOND >= deadline:
                raise last
            await asyncio.sleep(pause_us / SECOND)
            pause_us = min(2 * pause_us, RETRY_DELAY_MAX_US)

    async def _ask_owner(
        self, target: Target, message: dict[str, Any], fields: tuple[str, ...]
    ) -> dict[str, Any]:
        """Ask one sequencer, and whom it names as the owner."""
        for _ in range(REDIRECT_COUNT_MAX):
            answer = await self._ask_one(target, message, fields)
            if "redirect" not in answer:
                return answer
            target = _read_redirect(answer["redirect"], target)
        raise DuramenError("log_unavailable", "its owner changes all the time: try again")

    async def _ask_one(
        self, target: Target, message: dict[str, Any], fields: tuple[str, ...]
    ) -> dict[str, Any]:
        status, data = await self._peers.request_json(
            "POST", f"{target.url}/s/control", orjson.dumps(message), _CALL_TIMEOUT_US
        )
        try:
            document = orjson.loads(data)
        except orjson.JSONDecodeError:
            document = None
        if not isinstance(document, dict):
            raise _not_understood(target)
        if status != 200:
            raise read_problem(document) or _not_understood(target)
        if "redirect" not in document and any(name not in document for name in fields):
            raise _not_understood(target)
        return document


class AutoCreator:
    """Ids of logs, of those too that the asking itself creates."""

    def __init__(
        self, names: NameCache, creator: Creator, store: MetadataStore, paths: Paths
    ) -> None:
        self._names = names
        self._creator = creator
        self._store = store
        self._paths = paths
        self._creations: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._created_count = 0

    async def find(self, namespace: str, log: str) -> LogId:
        """The id of a log whose name is legal; makes the log where its namespace allows it.

        Raises:
            DuramenError: `namespace_not_found`, `log_not_found`, `metadata_unavailable`,
                `log_unavailable`.
        """
        try:
            return await self._names.find(namespace, log)
        except DuramenError as error:
            if error.code != "log_not_found" or not await self._is_allowed(namespace):
                raise
        key = (namespace, log)
        creation = self._creations.get(key)
        if creation is None:
            # Whoever appends to the same log meanwhile waits for the same creation.
            creation = asyncio.create_task(self._create(namespace, log))
            self._creations[key] = creation
            creation.add_done_callback(lambda task: self._on_created(key, task))
        await asyncio.shield(creation)
        return await self._names.find(namespace, log)

    def statistics(self) -> dict[str, int]:
        """Logs created since the start and creations under way."""
        return {"created": self._created_count, "creating": len(self._creations)}

    async def _create(self, namespace: str, log: str) -> None:
        try:
            made = await self._creator.create_log(namespace, log, LogConfig().to_json())
        except DuramenError as error:
            # Somebody made it meanwhile, with a configuration of their own: it is there.
            if error.code != "log_exists_with_other_config":
                raise
        else:
            self._created_count += made["created"] is True

    def _on_created(self, key: tuple[str, str], task: asyncio.Task[None]) -> None:
        self._creations.pop(key, None)
        if not task.cancelled():
            # Marks it as seen: everybody who waited may have gone.
            task.exception()

    async def _is_allowed(self, namespace: str) -> bool:
        try:
            found = await self._store.get(self._paths.namespace(namespace))
            config = {} if found is None else read_node(found.data).get("config", {})
        except MetadataError as error:
            raise DuramenError("metadata_unavailable", f"ZooKeeper: {error}") from error
        except MetadataJsonError as error:
            raise DuramenError("internal", f"namespace {namespace}: {error}") from error
        return parse_namespace_config(config).auto_create


def read_problem(document: dict[str, Any]) -> DuramenError | None:
    """The error that a problem+json object of ours stands for; None if it is none."""
    code, detail = document.get("code"), document.get("detail")
    if code not in ERRORS or not isinstance(detail, str):
        return None
    field, retry_after_ms = document.get("field"), document.get("retry_after_ms")
    tail = document.get("tail")
    if code == "beyond_tail" and isinstance(tail, dict) and isinstance(field, str):
        return BeyondTailError(detail, tail, field=field)
    return DuramenError(
        code,
        detail,
        field=field if isinstance(field, str) else None,
        retry_after_ms=retry_after_ms if isinstance(retry_after_ms, int) else None,
        uncertain=document.get("uncertain") is True,
        facts={name: document[name] for name in PROBLEM_FACTS if name in document},
    )


def _read_redirect(redirect: Any, asked: Target) -> Target:
    """The sequencer that is named as the owner."""
    name = redirect.get("sequencer_id") if isinstance(redirect, dict) else None
    url = redirect.get("url") if isinstance(redirect, dict) else None
    if not isinstance(name, str) or not isinstance(url, str):
        raise _not_understood(asked)
    return Target(name, url)


def _not_understood(target: Target) -> DuramenError:
    return DuramenError(
        "internal", f"sequencer {target.sequencer_id}: its answer is not understood", uncertain=True
    )
