"""Control calls: namespaces and creation of logs, by any live sequencer, and what an owner does.

As a rule the same request gives the same result, so unlike an append it is sent again to the next
sequencer when one does not answer (`Repetition` names the exceptions); a redirect is followed at
once. What says whether this call created or changed something carries a nonce, the same in every
try, so that a later one knows the work of an earlier one. Whoever is asked next is told who was
asked in vain: a dead owner is succeeded then. The proxy itself writes nothing to ZooKeeper.

An append to a log that does not exist creates it where its namespace has `auto_create` and its
caller may, with the defaults; several proxies may do so at once, and one of them makes it.

Called by `rest`, `append_route`, `logs.life` and `logs.fencing`.
Source: docs/protocol/rest.md "Write proxy", docs/protocol/metadata.md "Rules for every change".
"""

from __future__ import annotations

import asyncio
import enum
import secrets
from typing import Any, Final

import orjson

from duramen.config import LogConfig, parse_namespace_config
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError, read_problem
from duramen.ids import LogId
from duramen.limits import APPEND_TIMEOUT_US, RETRY_BACKOFF
from duramen.runtime.admission.callers import AdmittedCall
from duramen.runtime.http_client import PeerClient, PeerError, UnreachableError
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore
from duramen.units import SECOND
from duramen.wire.frame import FrameError
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_node
from duramen.wire.sequencer_calls import Redirect, read_redirect
from duramen_writeproxy.lanes import uncertain
from duramen_writeproxy.logs.names import NameCache
from duramen_writeproxy.routing import Router, Target

_CALL_TIMEOUT_US: Final = 5 * SECOND
"""One sequencer's time for one creation: a few writes to ZooKeeper."""

_RETRIED: Final = ("log_unavailable", "server_draining", "metadata_unavailable")
_PASSED_OVER: Final = ("server_draining", "metadata_unavailable")
"""This sequencer cannot do it; another one may."""


class Repetition(enum.Enum):
    """What may be done about a try whose fate is open: it was sent, and no answer came."""

    FREE = "free"
    """Send it again. If no try is answered, that is `log_unavailable`: whoever repeats the call
    gets its result, whatever became of the tries."""

    TOLD = "told"
    """Send it again; only an answer settles it, and without one it is `append_uncertain`."""

    NEVER = "never"
    """A repetition could be refused because of the first one's success: `append_uncertain` now."""


class Creator:
    """The one asker of `/s/control`."""

    def __init__(self, router: Router, peers: PeerClient) -> None:
        self._router = router
        self._peers = peers

    async def create_namespace(self, namespace: str, config: dict[str, Any]) -> dict[str, Any]:
        """Ensure a namespace; the sequencer's answer has `created` and `config`.

        Raises:
            DuramenError: the sequencer's refusal, `log_unavailable` when none answers.
        """
        message = {"op": "create_namespace", "namespace": namespace, "config": config, **_nonce()}
        return await self.ask(namespace, message, ("created", "config"))

    async def change_namespace(self, namespace: str, patch: dict[str, Any]) -> dict[str, Any]:
        """Change the fields that `patch` names; gives `config` and `changed`.

        Raises:
            DuramenError: the sequencer's refusal, `log_unavailable` when none answers.
        """
        message = {"op": "change_namespace", "namespace": namespace, "config": patch, **_nonce()}
        return await self.ask(namespace, message, ("config", "changed"))

    async def delete_namespace(self, namespace: str) -> dict[str, Any]:
        """Delete a namespace without logs; `changed` is false if it was not there.

        Raises:
            DuramenError: the sequencer's refusal, `log_unavailable` when none answers.
        """
        message = {"op": "delete_namespace", "namespace": namespace}
        return await self.ask(namespace, message, ("changed",))

    async def create_log(self, namespace: str, log: str, config: dict[str, Any]) -> dict[str, Any]:
        """Ensure a log; the sequencer's answer has `created`, `log_id` and `config`.

        Raises:
            DuramenError: the sequencer's refusal, `log_unavailable` when none answers.
        """
        message = {"op": "create_log", "namespace": namespace, "log": log, "config": config}
        fields = ("created", "log_id", "config")
        return await self.ask(f"{namespace}/{log}", {**message, **_nonce()}, fields)

    async def reconfigure(
        self, key: str, log_id: LogId, patch: dict[str, Any], config_version: int | None
    ) -> dict[str, Any]:
        """Change the fields that `patch` names; gives `config`, `config_version` and `changed`.

        Raises:
            DuramenError: the sequencer's refusal, `log_unavailable` when none answers.
        """
        message: dict[str, Any] = {"op": "reconfigure", "log_id": str(log_id), "config": patch}
        message.update(_nonce())
        if config_version is not None:
            message["config_version"] = config_version
        return await self.ask(key, message, ("config", "config_version", "changed"))

    async def roll(self, key: str, log_id: LogId) -> dict[str, Any]:
        """Begin to close the log's open segment; gives its `epoch`, None if there is none.

        Raises:
            DuramenError: the sequencer's refusal, `log_unavailable` when none answers.
        """
        return await self.ask(key, {"op": "roll", "log_id": str(log_id)}, ("epoch",))

    async def suspend_rolling(self, *, is_suspended: bool) -> dict[str, int | None]:
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
        self,
        key: str,
        message: dict[str, Any],
        fields: tuple[str, ...],
        *,
        log_id: LogId | None = None,
        repetition: Repetition = Repetition.FREE,
        timeout_us: int = _CALL_TIMEOUT_US,
    ) -> dict[str, Any]:
        """Carry out a control operation at whoever may.

        Args:
            key: `namespace/log`, or a namespace: whom the hash names for it is asked first.
            fields: what a usable answer has.
            log_id: of the log that it is about: its owner, if it is known, is asked before.
            timeout_us: for one sequencer's answer.

        Raises:
            DuramenError: the sequencer's refusal, `log_unavailable` when none answers,
                `metadata_unavailable` when none reaches ZooKeeper,
                `append_uncertain` as `repetition` says.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + APPEND_TIMEOUT_US / SECOND
        pause_us = RETRY_BACKOFF.first_us
        outcome = _Outcome(repetition)
        while True:
            asked: set[str] = set()
            target = self._router.pick(key, log_id)
            while target is not None:
                asked.add(target.url)
                owner = None
                try:
                    told = outcome.report(message, target)
                    answer = await self._ask_one(target, told, fields, timeout_us)
                    owner = read_redirect(answer)
                    if owner is None:
                        return answer
                    outcome.note_redirect(target)
                except (PeerError, FrameError, DuramenError) as error:
                    if log_id is not None and isinstance(error, UnreachableError):
                        self._router.forget(log_id, target)
                    outcome.note(error, target)
                target = self._find_next(key, log_id, owner, asked)
            if outcome.is_away or loop.time() + pause_us / SECOND >= deadline:
                raise outcome.error()
            await asyncio.sleep(pause_us / SECOND)
            pause_us = RETRY_BACKOFF.next_us(pause_us)

    def _find_next(
        self, key: str, log_id: LogId | None, owner: Redirect | None, asked: set[str]
    ) -> Target | None:
        """Whom to ask after a redirect to `owner` or a vain try; nobody twice without a pause."""
        if owner is not None:
            named = Target(*owner)
            if log_id is not None:
                self._router.learn(log_id, named)
            if named.url not in asked:
                return named
        return self._router.pick(key, log_id, asked)

    async def _ask_one(
        self,
        target: Target,
        message: dict[str, Any],
        fields: tuple[str, ...],
        timeout_us: int = _CALL_TIMEOUT_US,
    ) -> dict[str, Any]:
        status, data = await self._peers.request_json(
            "POST", f"{target.url}/s/control", orjson.dumps(message), timeout_us
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


class _Outcome:
    """What the tries of one call have come to so far."""

    def __init__(self, repetition: Repetition) -> None:
        self._repetition = repetition
        self._is_open = False
        self._last = DuramenError("log_unavailable", "no sequencer can be reached")
        self._in_vain: dict[str, None] = {}

    @property
    def is_away(self) -> bool:
        """Nobody is left who reaches the metadata store: a pause would not help soon."""
        return self._last.code == "metadata_unavailable"

    def report(self, message: dict[str, Any], target: Target) -> dict[str, Any]:
        """The message to `target`, who is told which others cannot carry the call out."""
        others = [name for name in self._in_vain if name != target.sequencer_id]
        return {**message, "tried": others} if others else message

    def note_redirect(self, target: Target) -> None:
        self._in_vain.pop(target.sequencer_id, None)
        self._last = DuramenError("log_unavailable", "its owner changes all the time: try again")

    def note(self, error: PeerError | FrameError | DuramenError, target: Target) -> None:
        """A try failed.

        Raises:
            DuramenError: another try would not help, or must not be.
        """
        # Named also behind a pause, when everybody is asked again, until it answers.
        self._in_vain.pop(target.sequencer_id, None)
        is_in_vain = isinstance(error, PeerError)
        if isinstance(error, DuramenError):
            last, is_open = error, error.uncertain
            is_in_vain = error.code in _PASSED_OVER
        elif isinstance(error, FrameError):
            last, is_open = _not_understood(target), True
        else:
            last = DuramenError("log_unavailable", f"no sequencer answered: {error}")
            is_open = not isinstance(error, UnreachableError)
        if is_in_vain:
            self._in_vain[target.sequencer_id] = None
        is_told = self._repetition is not Repetition.FREE
        self._is_open |= is_open and is_told
        self._last = last
        if is_open and is_told:
            if self._repetition is Repetition.NEVER:
                raise self.error() from error
        elif last.code not in _RETRIED:
            raise self.error() from error

    def error(self) -> DuramenError:
        """How the call ends if no try succeeds any more."""
        if not self._is_open:
            return self._last
        return uncertain(f"the last try ended in {self._last.code} ({self._last.detail})")


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

    async def find(self, namespace: str, log: str, call: AdmittedCall | None) -> LogId:
        """The id of a log whose name is legal; makes the log where its namespace allows it.

        Args:
            call: whose caller has to be allowed to create it; None: nobody is asked who it is.

        Raises:
            DuramenError: `namespace_not_found`, `log_not_found`, `metadata_unavailable`,
                `log_unavailable`, `forbidden`.
        """
        try:
            return await self._names.find(namespace, log)
        except DuramenError as error:
            if error.code != "log_not_found" or not await self._is_allowed(namespace):
                raise
        if call is not None:
            call.demand(Verb.CREATE, namespace, log)
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
            made = await self._creator.create_log(namespace, log, LogConfig().to_stored())
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


def _nonce() -> dict[str, str]:
    """What tells one call from all others, whoever is asked, and however often."""
    return {"nonce": secrets.token_hex(12)}


def _not_understood(target: Target) -> DuramenError:
    return DuramenError(
        "internal", f"sequencer {target.sequencer_id}: its answer is not understood", uncertain=True
    )
