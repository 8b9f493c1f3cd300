"""The hands that turn what says who is who, under load, with a process killed between the steps.

    leaves      everybody gets another certificate
    authority   another CA is announced, takes over (and, in every other one, gives back and takes
                over once more), and the former one is retired
    token       another API token is made, the loads show it, and the former is revoked
    issuer      the same with a key of the issuer of web tokens
    revoked ..  one process' certificate is revoked, and after a while it gets another one

Each step waits for evidence: that every port shows the new certificate, that the revoked process
ended, that every proxy refuses the former token within 5 s. What was promised and is not kept is
a violation; that no load is refused meanwhile `watch` sees.

Called by `nemesis`. Source: docs/protocol/identity.md "Replacing the CA", docs/protocol/
credentials.md "API tokens".
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from cryptography import x509

from duramen.client.credentials.credential import make_credential
from duramen.client.rest_client import RestClient
from duramen.client.retry import repeat_while_refused
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from tests.chaos.cluster import ChaosCluster
from tests.chaos.history import read_clock_ns
from tests.chaos.issuer import USER
from tests.chaos.keys import LOOK_S, ClusterKeys
from tests.chaos.schedule import Step
from tests.chaos.waiting import wait_at_most
from tests.waiting import comes_true

REVOKED_S: Final = 5.0
"""Within this time what was revoked is refused."""

_SHOWN_S: Final = 20.0
_KNOWN_S: Final = 3 * LOOK_S
"""A bundle, a list or a token is known to everybody who runs."""

_READY_S: Final = 60.0
_CALL_S: Final = 60.0
_PROBE_S: Final = 2.0
_VERBS: Final = ("append", "configure", "create", "list", "read", "truncate")
_ROLES: Final = ("bookie", "sequencer", "writeproxy", "readproxy", "zookeeper")
_SERVED: Final = "served"
_NO_ANSWER: Final = "no answer"
_UNKNOWN: Final = "unauthenticated"

Evidence = dict[str, Any]


class _Token(NamedTuple):
    id: str
    text: str


class Turning:
    """Turns the keys of one cluster.

    Args:
        on_violation: what was promised and not kept is put there.
    """

    def __init__(
        self, cluster: ChaosCluster, keys: ClusterKeys, on_violation: Callable[[str, str], None]
    ) -> None:
        self._cluster = cluster
        self._keys = keys
        self._on_violation = on_violation
        self._token = _Token("", "")

    async def begin(self) -> None:
        """Have the token that the loads show, and let the issuer's user do as much."""
        grants = {"grants": [{"who": USER, "role": "owner", "scope": "*"}]}
        there = await self._call(lambda client: client.get_json("/v1/grants", {"scope": "*"}))
        path = f"/v1/grants?scope=*&version={there['version']}"
        await self._call(lambda client: client.change_json("PUT", path, grants))
        self._token = await self._make_token()
        self._keys.write_token(self._token.text)
        await wait_at_most(_KNOWN_S)

    async def turn(self, step: Step) -> Evidence:
        """One step of the schedule: how it went, `done` if it came to its end."""
        if step.kind.startswith("revoked "):
            return await self._revoke(step)
        match step.kind:
            case "leaves":
                return await self._turn_leaves(step.number)
            case "authority":
                return await self._turn_authority(step.number)
            case "token":
                return await self._turn_token(step.number)
            case _:
                assert step.kind == "issuer", step.kind
                return await self._turn_issuer(step.number)

    # --- certificates ----------------------------------------------------------------------------

    async def _turn_leaves(self, number: int) -> Evidence:
        before = await self._list_shown()
        await asyncio.to_thread(self._keys.turn_leaves)
        killed = await self._kill_one(number)
        return {"done": await self._wait_shown(before), "killed": killed}

    async def _turn_authority(self, number: int) -> Evidence:
        keys = self._keys
        turns = [keys.switch] * (3 if number & 1 else 1)
        steps = [keys.announce, *turns, keys.retire]
        first = await asyncio.to_thread(keys.list_anchors)
        killed: list[str] = []
        is_shown = True
        for index, step in enumerate(steps):
            before = await self._list_shown()
            await asyncio.to_thread(step)
            killed.append(await self._kill_one(number >> (1 + 4 * index)))
            if step == keys.switch:
                is_shown &= await self._wait_shown(before)
            await wait_at_most(_KNOWN_S)
        last = await asyncio.to_thread(keys.list_anchors)
        is_turned = len(last) == 1 and last != first
        if not is_turned:
            self._on_violation("turned", f"{len(last)} CAs are trusted at the end, of {len(first)}")
        return {"done": is_shown and is_turned, "steps": len(steps), "killed": killed}

    async def _revoke(self, step: Step) -> Evidence:
        cluster, (name,) = self._cluster, step.targets
        if cluster.pid(name) is None:
            return {"done": False, "why": "it does not run"}
        t0_ns = read_clock_ns()
        try:
            await asyncio.to_thread(self._keys.revoke, name)
            is_over = await comes_true(lambda: cluster.exited_ns(name) > t0_ns, _SHOWN_S)
            over_s = (read_clock_ns() - t0_ns) / 1e9
            await wait_at_most(step.duration_s)
        finally:
            await asyncio.to_thread(self._keys.turn_leaves, [name])
        late = await cluster.wait_ready(_READY_S)
        if not is_over:
            self._on_violation("revoked", f"{name} ran on for {_SHOWN_S:g} s")
        return {"done": is_over, "over_s": round(over_s, 2), "late": late}

    async def _list_shown(self) -> dict[str, bytes]:
        """Process → the certificate that its admin port shows; those that answer."""
        found = await asyncio.gather(*(asyncio.to_thread(self._see, n) for n in self._list_nodes()))
        return {name: shown for name, shown in found if shown}

    def _list_nodes(self) -> list[str]:
        return [name for role in _ROLES[:-1] for name in self._cluster.ids(role)]

    def _see(self, name: str) -> tuple[str, bytes]:
        place = urlsplit(self._cluster.url(name, "admin_url"))
        assert place.hostname is not None and place.port is not None, name
        try:
            pem = ssl.get_server_certificate((place.hostname, place.port), timeout=_PROBE_S)
        except OSError:
            return name, b""
        return name, x509.load_pem_x509_certificate(pem.encode()).serial_number.to_bytes(20)

    async def _wait_shown(self, before: dict[str, bytes]) -> bool:
        """Whether every process comes to show another certificate than before.

        One that does not answer shows nothing; one that shows the former one was promised not to.
        """
        deadline = asyncio.get_running_loop().time() + _SHOWN_S
        while True:
            now = await self._list_shown()
            if all(now.get(name) not in (None, before.get(name)) for name in self._list_nodes()):
                return True
            if asyncio.get_running_loop().time() >= deadline:
                break
            await wait_at_most(0.5)
        for name in sorted(name for name in now if now[name] == before.get(name)):
            text = f"{name} shows its former certificate after {_SHOWN_S:g} s"
            self._on_violation("turned", text)
        return False

    async def _kill_one(self, number: int) -> str:
        """A process of any role dies between two steps, and is there again.

        Args:
            number: its lowest four bits say which.
        """
        cluster, (turn, place) = self._cluster, divmod(number & 15, len(_ROLES))
        names = cluster.ids(_ROLES[place])
        name = names[turn % len(names)]
        cluster.kill(name)
        cluster.release(name)
        await wait_at_most(0.5)
        await cluster.wait_ready(_READY_S)
        return name

    # --- tokens ----------------------------------------------------------------------------------

    async def _turn_token(self, number: int) -> Evidence:
        old, self._token = self._token, await self._make_token()
        killed = [await self._kill_one(number)]
        await wait_at_most(_KNOWN_S)
        self._keys.write_token(self._token.text)
        killed.append(await self._kill_one(number >> 4))
        await self._call(lambda client: client.delete_json(f"/v1/access-tokens/{old.id}"))
        is_over = await self._are_refusing(old.text)
        killed.append(await self._kill_one(number >> 8))
        return {"done": is_over, "killed": killed}

    async def _turn_issuer(self, number: int) -> Evidence:
        issuer = self._cluster.issuer
        old = await asyncio.to_thread(issuer.sign)
        is_believed = await self._wait_believed(old)
        await asyncio.to_thread(issuer.add_key)
        killed = [await self._kill_one(number)]
        # At once: a file is looked at for the first token that names a new key.
        self._keys.write_token(await asyncio.to_thread(issuer.sign))
        killed.append(await self._kill_one(number >> 4))
        await asyncio.to_thread(issuer.retire)
        is_over = await self._are_refusing(old)
        killed.append(await self._kill_one(number >> 8))
        return {"done": is_believed and is_over, "killed": killed}

    async def _are_refusing(self, token: str) -> bool:
        proxies = self._cluster.ids("writeproxy") + self._cluster.ids("readproxy")
        return all(await asyncio.gather(*(self._wait_refused(name, token) for name in proxies)))

    async def _wait_believed(self, token: str) -> bool:
        """Whether the first write proxy comes to believe a good token."""
        name, said = self._cluster.ids("writeproxy")[0], _NO_ANSWER

        async def is_believed() -> bool:
            nonlocal said
            said = await self._ask(name, token)
            return said == _SERVED

        if await comes_true(is_believed, _SHOWN_S):
            return True
        if said == _UNKNOWN:
            self._on_violation("turned", f"{name} believes no token of the issuer")
        return False

    async def _ask(self, name: str, token: str) -> str:
        """What a proxy says to who shows this token: that it serves him, or a refusal's code."""
        client = RestClient(self._cluster.url(name), credential=make_credential(token=token))
        try:
            await client.list_namespaces()
        except DuramenError as error:
            return error.code
        except PeerError:
            return _NO_ANSWER
        finally:
            await client.close()
        return _SERVED

    async def _make_token(self) -> _Token:
        body = {
            "scopes": [{"verbs": list(_VERBS), "target": "*"}],
            "expires": "12h", "note": "of a chaos run",
        }  # fmt: skip
        made = await self._call(lambda client: client.post_json("/v1/access-tokens", body))
        return _Token(str(made["id"]), str(made["token"]))

    async def _call(self, call: Callable[[RestClient], Awaitable[dict[str, Any]]]) -> Evidence:
        """A call of whoever may do everything, at whichever write proxy answers."""
        credential = make_credential(token_file=self._keys.root_file)
        url = self._cluster.url(self._cluster.ids("writeproxy")[0])
        client = RestClient(url, credential=credential)
        try:
            return await repeat_while_refused(
                partial(call, client), timeout_s=_CALL_S, is_read=True
            )
        finally:
            await client.close()

    async def _wait_refused(self, name: str, token: str) -> bool:
        """Whether a proxy refuses a revoked token in time."""
        began_ns = read_clock_ns()
        while await self._ask(name, token) != _UNKNOWN:
            if (read_clock_ns() - began_ns) / 1e9 > REVOKED_S:
                text = f"{name} believes a token {REVOKED_S:g} s after it was revoked"
                self._on_violation("revoked", text)
                return False
            await wait_at_most(0.2)
        return True
