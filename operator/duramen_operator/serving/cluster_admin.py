"""A cluster's own API as a worker uses it: one look a pass, and the calls of a plan.

Puts `observe.admin` and `apply.admin_calls` behind the worker's port, and keeps what is known of
the cluster's logs between looks. A cluster that does not answer is an answer, too: nothing is known
of it then, which is not the same as nothing being there.
A cluster that asks nobody who calls is reached by its Service. One with identities is called by the
operator's own, pod by pod: the next one where one does not answer.

Called by `running`, once for each cluster. Source: docs/protocol/rest.md,
docs/kubernetes/one-hand.md "What a look costs", docs/kubernetes/security.md "The operator as a
caller".
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from duramen.client.credentials.credential import Credential
from duramen.client.credentials.receiver_header import ReceiverHeader
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError, UnreachableError
from duramen.runtime.identity.names import Identity, IdentityError, Role
from duramen_operator.apply.admin_calls import ProxyCalls
from duramen_operator.apply.executor import CallRefused
from duramen_operator.observe.admin import LookMemory, observe_logs
from duramen_operator.observe.grants import observe_grants
from duramen_operator.observe.places import (
    NotFoundedError,
    WriteProxyPod,
    find_domain,
    find_trust,
    list_places,
)
from duramen_operator.observe.questions import AdminClient, BoundedClient
from duramen_operator.observe.standing import AskAuditor, StandingQuestion
from duramen_operator.plan.observed import AdminView, Json, Observed, Problem
from duramen_operator.plan.steps import Call
from duramen_operator.serving.cluster_identity import ClusterIdentity, OperatorIdentity
from duramen_operator.settings import Settings

LOOK_S: Final = 8.0
"""All that is asked in one look: where it ends too early, what was read so far counts."""

ASKED_COUNT_MAX: Final = 3
"""Write proxies in one look, or for one call: what fails at so many is not one proxy's fault."""

_NOBODY_READY: Final = "no write proxy is ready"
_LOG_PATH: Final = re.compile(r"/v1/namespaces/([^/]+)/logs/([^/:?]+)")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Answering:
    """A write proxy that answers: its two ports, who asks the auditor through it, and what it said
    of its bookies."""

    public: AdminClient
    admin: AdminClient
    auditor: AskAuditor
    bookies: dict[str, Json]


class ClusterAdmin:
    """The write proxies of one cluster."""

    def __init__(
        self,
        cluster_name: str,
        settings: Settings,
        identity: ClusterIdentity,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`check`: asked before each call is sent; what it raises keeps it from being sent."""
        self._check = check
        self._settings = settings
        self._write_url = settings.find_write_url(cluster_name)
        self._admin_url = settings.find_admin_url(cluster_name)
        self._identity = identity
        self._held: OperatorIdentity | None = None
        self._proxies: dict[WriteProxyPod, ProxyCalls] = {}
        """Whom to ask, first first."""
        self._memory = LookMemory(time.monotonic)
        self._standing = StandingQuestion(time.monotonic)
        self._cluster_uid = ""

    def renew(self, paths: frozenset[str]) -> None:
        """Have the next look read these logs, whatever is known of them."""
        self._memory.facts.renew(paths)

    async def look(self, seen: Observed) -> AdminView:
        """What the cluster says of its bookies, and of what objects of ours are about."""
        cluster = seen.cluster
        if cluster is not None and cluster.uid != self._cluster_uid:
            # Another cluster of the name, of whose logs nothing is known.
            self._cluster_uid, self._memory = cluster.uid, LookMemory(time.monotonic)
            await self._standing.forget()
        view = await self._look_in_time(seen)
        return view if self._held is None else replace(view, trusted=self._held.trusted)

    async def _look_in_time(self, seen: Observed) -> AdminView:
        ends_s = asyncio.get_running_loop().time() + LOOK_S
        try:
            async with asyncio.timeout_at(ends_s):
                found = await self._find_answering(seen)
        except TimeoutError:
            names = ", ".join(place.public_url for place in self._proxies) or "the API server"
            return AdminView(reason=f"{names} takes longer than {LOOK_S:g} s")
        except (IdentityError, DuramenError) as error:
            await self._forget()
            return AdminView(reason=str(error))
        except NotFoundedError:
            await self._forget()
            return AdminView(reason="there is no record yet of which cluster this is")
        if isinstance(found, str):
            return AdminView(reason=found)
        return await _look_at(found, seen, self._memory, self._standing, ends_s)

    async def call(self, step: Call) -> None:
        """Make one call: by another write proxy only where none was reached.

        Raises:
            CallRefused: it was refused, or its fate is open; doing it again is safe.
        """
        changed = _LOG_PATH.match(step.path)
        if changed is not None:
            self.renew(frozenset({"/".join(map(unquote, changed.groups()))}))
        await self._ask_one(lambda proxy: proxy.call(step, self._check))

    async def take(self, question: Json) -> None:
        """Take a grant of disruption: by another write proxy only where none was reached.

        Raises:
            CallRefused: as of `AdminCalls.take`.
        """
        await self._ask_one(lambda proxy: proxy.take(question, self._check))

    async def _ask_one(self, ask: Callable[[ProxyCalls], Awaitable[None]]) -> None:
        refusal = CallRefused(Problem("unreachable", _NOBODY_READY))
        for proxy in list(self._proxies.values())[:ASKED_COUNT_MAX]:
            try:
                return await ask(proxy)
            except CallRefused as refused:
                if not isinstance(refused.__cause__, UnreachableError):
                    raise
                refusal = refused
        raise refusal

    async def close(self) -> None:
        """Close every connection, and keep no key."""
        await self._standing.forget()
        await self._forget()
        self._identity.forget()

    async def _find_answering(self, seen: Observed) -> _Answering | str:
        """The first write proxy that answers; or why there is none.

        Raises:
            IdentityError, DuramenError, NotFoundedError: nobody can be asked.
        """
        await self._find_proxies(seen)
        failures: list[str] = []
        for place, proxy in list(self._proxies.items())[:ASKED_COUNT_MAX]:
            public = BoundedClient(proxy.public)
            admin = BoundedClient(proxy.admin)
            try:
                found = await admin.get_json("/v1/cluster/bookies")
            except (PeerError, DuramenError) as error:
                failures.append(f"{place.pod}: {error}" if place.pod else str(error))
            else:
                # Who has answered is asked first, also for the calls of this pass.
                self._proxies = {place: proxy, **self._proxies}
                bookies = {str(row["id"]): row for row in found["bookies"]}
                return _Answering(public, admin, proxy.ask_standing, bookies)
        return "; ".join(failures) or _NOBODY_READY

    async def _find_proxies(self, seen: Observed) -> None:
        """See whom to ask now, and as whom.

        Raises:
            IdentityError, DuramenError, NotFoundedError: nobody can be asked.
        """
        domain = find_domain(seen)
        if domain is None:
            self._held = None
            place = WriteProxyPod("", self._write_url, self._admin_url)
            kept = self._proxies.get(place) or ProxyCalls(self._write_url, self._admin_url)
            return await self._keep({place: kept})
        held = await self._identity.read(domain, find_trust(seen))
        if held is not self._held:
            await self._keep({})
            self._held = held
        places = list_places(seen, self._settings)
        known = {place: calls for place, calls in self._proxies.items() if place in places}
        others = [place for place in places if place not in known]
        await self._keep(known | {place: _open_proxy(place, held) for place in others})
        return None

    async def _forget(self) -> None:
        """Call nobody any more, as whom it may be."""
        self._held = None
        await self._keep({})

    async def _keep(self, proxies: Mapping[WriteProxyPod, ProxyCalls]) -> None:
        """Ask these from now on; connections to others are closed."""
        before, self._proxies = self._proxies, dict(proxies)
        for place, calls in before.items():
            if self._proxies.get(place) is not calls:
                await calls.close()


def _open_proxy(place: WriteProxyPod, own: OperatorIdentity) -> ProxyCalls:
    """The ports of one write proxy, for who shows this identity there."""
    receiver = Identity(own.held.identity.domain, Role.WRITEPROXY, place.pod)
    header = ReceiverHeader(own.held, receiver)
    return ProxyCalls(
        place.public_url,
        place.admin_url,
        shown=Credential(ca=own.public_anchors, header=header),
        shown_to_admin=Credential(identity=own.folder),
    )


async def _look_at(
    found: _Answering,
    seen: Observed,
    memory: LookMemory,
    standing: StandingQuestion,
    ends_s: float,
) -> AdminView:
    """What one write proxy says until that moment."""
    asked = observe_grants(found.public, found.admin) if seen.list("LogGrant") else None
    grants, holdings, disruptions, known, logs = await asyncio.gather(
        _or_none(ends_s, asked),
        _or_none(ends_s, _count_copies(found.admin)),
        _or_none(ends_s, _list_disruptions(found.admin)),
        standing.look(found.auditor, seen),
        observe_logs(found.public, found.admin, seen, memory, ends_s=ends_s),
    )
    moments = (logs.look_again_s, standing.look_again_s(seen))
    return AdminView(
        is_reachable=True,
        reason="",
        bookies=found.bookies,
        namespaces=logs.namespaces,
        logs=logs.logs,
        stale_logs=logs.stale_logs,
        unlisted=logs.unlisted,
        look_again_s=min((one for one in moments if one is not None), default=None),
        holdings=holdings,
        grants=grants,
        disruptions=disruptions,
        standing=known,
    )


async def _list_disruptions(admin: AdminClient) -> tuple[Json, ...] | None:
    """Grants that are outstanding; None: the auditor does not say."""
    try:
        found = await admin.get_json("/v1/cluster/disruptions")
    except (PeerError, DuramenError):
        return None
    return tuple(found["grants"])


async def _count_copies(admin: AdminClient) -> dict[str, Json] | None:
    """What the auditor counted on each bookie; None until it has, or while there is none."""
    try:
        found = await admin.get_json("/v1/cluster/repair/bookies")
    except (PeerError, DuramenError):
        return None
    return {str(row["bookie"]): row for row in found["bookies"]}


async def _or_none(ends_s: float, asked: Coroutine[Any, Any, T] | None) -> T | None:
    """The answer, if it comes before that moment."""
    if asked is None:
        return None
    try:
        async with asyncio.timeout_at(ends_s):
            return await asked
    except TimeoutError:
        return None
