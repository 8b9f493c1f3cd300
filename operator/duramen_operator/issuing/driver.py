"""Keeps a cluster's Secrets as they are to be: reads them by name, writes what is missing.

It reads no other Secret, lists none and makes none. Killed between any two writes it does no harm:
the next look plans anew. What it tells others are names and times, never what a Secret holds.

Called by the worker, once a pass. Source: docs/kubernetes/security.md "Who issues", "Renewal".
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime as dt
import logging
from collections.abc import Callable, Sequence
from typing import Final

from duramen.backoff import Backoff
from duramen.runtime.identity.names import IdentityError
from duramen.units import SECOND
from duramen_operator.issuing.course import Issuance, plan_issuance
from duramen_operator.issuing.record import make_record, read_record
from duramen_operator.issuing.secrets import RecordWrite, Seen, SeenSecret, Write
from duramen_operator.issuing.wishes import explain_none, find_frame, summarize, want_certificates
from duramen_operator.kube import Kube, Refused
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.nodes import CA, SECRETS, name_secret
from duramen_operator.plan.observed import CertificatesView, Json, KubeObject, Observed, Ref

_log = logging.getLogger(__name__)

ROUND_COUNT_MAX: Final = 3
"""A first CA, what it issues, and that all of it stands there."""

_CHANGED: Final = frozenset({404, 409})
"""It is not what was seen any more: the next look sees it."""
_AGAIN: Final = Backoff(60 * SECOND, 6 * 3600 * SECOND)
"""Each try notes certificates that nobody gets: a Secret that refuses them is let be so long."""


class CertificateIssuer:
    """Issues for one cluster.

    What it remembers is no state: what refused a write, and until when it is let be.
    """

    def __init__(self, kube: Kube, clock_s: Callable[[], float]) -> None:
        self._kube = kube
        self._clock_s = clock_s
        self._refusals: dict[str, str] = {}
        self._failures: dict[str, int] = {}
        self._again_s: dict[str, float] = {}

    async def look(self, observed: Observed, now: dt.datetime) -> CertificatesView | None:
        """See to a cluster's certificates; None where they are not the operator's to issue.

        Where it is not clear which cluster this is, nothing is looked at, and the view says why. A
        paused cluster is looked at, and nothing is written.

        Raises:
            ApiUnreachable: the API server does not answer; the next look goes on.
            Refused: it does not show the record.
        """
        frame = find_frame(observed)
        if frame is None:
            return explain_none(observed)
        wanted, issuance = want_certificates(frame), Issuance()
        for _ in range(ROUND_COUNT_MAX):
            seen = await self._see(frame)
            # A hundred certificates take 50 ms to judge, and others are served meanwhile.
            issuance = await asyncio.to_thread(plan_issuance, wanted, seen, now)
            if observed.is_paused or not await self._write(issuance.writes, frame):
                break
        return summarize(issuance)

    async def _see(self, frame: ClusterFrame) -> Seen:
        names = {which: name_secret(frame.name, which) for which in SECRETS}
        found = await asyncio.gather(*map(self._find, names.values()))
        seen = dict(zip(names, found, strict=True))
        secrets = {which: one for which, one in seen.items() if isinstance(one, SeenSecret)}
        missing = {which: one for which, one in seen.items() if isinstance(one, str)}
        absent = frozenset(which for which, one in seen.items() if one is None)
        missing |= {
            which: f"there is no Secret {names[which]}: `helm upgrade` makes it, empty, for the "
            "chart's own cluster and for those that its value tls.clusters names"
            for which in absent
        }
        named = KubeObject(make_record(frame.cluster, ())).ref
        if self._is_let_be(named.name):
            return Seen({}, {CA: self._refusals[named.name]})
        try:
            record = await self._kube.get(named)
            recorded = read_record(frame.cluster, record)
        except IdentityError as error:
            return Seen({}, {CA: str(error)})
        state = None if record is None else _read_state(record)
        return Seen(secrets, missing, recorded, absent, state)

    async def _find(self, name: str) -> SeenSecret | str | None:
        """A Secret, or why it cannot be read; None: there is none."""
        if self._is_let_be(name):
            return self._refusals[name]
        try:
            found = await self._kube.get(_refer(name))
        except Refused as refused:
            return f"the Secret {name} cannot be read: {refused}"
        if found is None:
            return None
        try:
            return _read(found)
        except (binascii.Error, ValueError, AttributeError):
            return f"the Secret {name} cannot be read: its data is not in base64"

    async def _write(self, writes: Sequence[Write], frame: ClusterFrame) -> bool:
        """Write in order, up to the first that is refused. Whether something was written, and all
        of it."""
        for write in writes:
            try:
                await self._write_one(write, frame)
            except Refused as refused:
                name = _name(write, frame)
                _log.warning("%s: %s was not written: %s", frame.name, name, refused)
                if refused.status not in _CHANGED:
                    self._let_be(name, refused)
                return False
        return bool(writes)

    async def _write_one(self, write: Write, frame: ClusterFrame) -> None:
        if isinstance(write, RecordWrite):
            await self._kube.apply(_with_state(write, frame))
            self._failures.pop(_name(write, frame), None)
            _log.info("%s: the record names the CAs %s", frame.name, " ".join(write.authorities))
            return
        data = {
            name: None if value is None else base64.b64encode(value).decode()
            for name, value in write.data.items()
        }
        metadata = {"uid": write.uid, "resourceVersion": write.version}
        await self._kube.merge(_refer(write.name), {"metadata": metadata, "data": data})
        self._failures.pop(write.name, None)
        _log.info("%s: wrote %s", frame.name, write)

    def _is_let_be(self, name: str) -> bool:
        return self._clock_s() < self._again_s.get(name, 0.0)

    def _let_be(self, name: str, refused: Refused) -> None:
        count = self._failures.get(name, 0)
        self._failures[name] = count + 1
        self._again_s[name] = self._clock_s() + _AGAIN.pause_us(count) / SECOND
        self._refusals[name] = f"{name} cannot be written: {refused}"


def _name(write: Write, frame: ClusterFrame) -> str:
    if isinstance(write, RecordWrite):
        return KubeObject(make_record(frame.cluster, ())).name
    return write.name


def _read_state(found: Json) -> tuple[str, str]:
    item = KubeObject(found)
    return item.uid, item.resource_version


def _with_state(write: RecordWrite, frame: ClusterFrame) -> Json:
    """The record, with the state that it is to have still; a new one has none."""
    record = make_record(frame.cluster, write.authorities)
    if write.state is None:
        return record
    uid, version = write.state
    metadata = {**record["metadata"], "uid": uid, "resourceVersion": version}
    return {**record, "metadata": metadata}


def _refer(name: str) -> Ref:
    return Ref("v1", "Secret", name)


def _read(found: Json) -> SeenSecret:
    item = KubeObject(found)
    data = found.get("data") or {}
    decoded = {key: base64.b64decode(value, validate=True) for key, value in data.items()}
    return SeenSecret(item.name, item.uid, item.resource_version, decoded)
