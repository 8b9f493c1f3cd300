"""The way to the API server: lists, server-side apply, deletes and patches in one namespace.

A thin layer over kr8s, which knows kubeconfigs, service accounts and tokens that are renewed;
bodies and preconditions are ours. Whatever goes wrong is one of two errors: `Refused` (the API
server said no, and why) or `ApiUnreachable`. Called by `observe/`, `apply/` and `release.py`; calls
whose kinds are Kubernetes' own are made in `typed/`, under the login that is found here (ADR 0026).
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import kr8s.asyncio
import orjson
from kr8s.asyncio import Api

from duramen_operator.kinds import BY_NAME, Kind
from duramen_operator.names import FIELD_MANAGER
from duramen_operator.plan.observed import Json, Problem, Ref

REQUEST_S = 20.0
"""One request; the API server ends its own at 60 s, and a pass is tried again anyway."""
PAGE_OBJECTS = 500
UNAUTHORIZED = 401
_RETRYABLE_FROM = 500
_TOO_MANY = 429
_CONFLICT = 409


class Refused(Exception):
    """The API server said no. `status` is HTTP's, `problem.code` the reason of its Status."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(f"{problem.code}: {problem.message}")
        self.status = status
        self.problem = problem


class ApiUnreachable(Exception):
    """The API server did not answer in time, or not at all: whether it acted is open."""


@dataclass(frozen=True, slots=True)
class Login:
    """Where the API server is and who we are to it: what kr8s found, for watches and typed calls
    to be the same user."""

    server: str
    authority_file: str | None
    certificate_file: str | None
    key_file: str | None
    tls_server_name: str | None
    token: str | None


class Kube:
    """The API server, seen from one namespace.

    Args:
        check: asked before every request that writes; what it raises keeps it from being sent.
    """

    def __init__(self, api: Api, namespace: str, check: Callable[[], None] = lambda: None) -> None:
        self._api = api
        self._check = check
        self.namespace = namespace
        self.login = _read_login(api.auth)
        """As it was last read whole: while kr8s reads it again, its own is in pieces."""

    @classmethod
    async def connect(
        cls,
        namespace: str,
        kubeconfig: str | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Kube:
        """By the kubeconfig ($KUBECONFIG), or the service account of the pod that this runs in.

        Raises:
            ApiUnreachable: there are no credentials that lead anywhere.
            Refused: the API server does not say its version, which kr8s asks for first.
        """
        try:
            api = await kr8s.asyncio.api(namespace=namespace, kubeconfig=kubeconfig)
            return cls(api, namespace, check)
        except kr8s.ServerError as error:
            answer = _find_answer(error)
            raise make_refusal(answer.status_code, answer.content) from error
        except (ValueError, OSError, httpx.HTTPError) as error:
            raise ApiUnreachable(str(error)) from error

    async def renew_login(self) -> Login:
        """Read the credentials again: a service account's token changes every hour."""
        await self._api.auth.reauthenticate()
        self.login = _read_login(self._api.auth)
        return self.login

    async def list(self, kind: Kind, selector: str = "") -> list[Json]:
        """Every object of a kind, as they are now (no cache of the API server's)."""
        return [item async for item in self._list(kind, selector)]

    async def get(self, ref: Ref) -> Json | None:
        """One object; None where there is none."""
        try:
            return await self._request("GET", self._path(ref))
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    async def apply(self, manifest: Json, *, is_status: bool = False) -> Json:
        """Server-side apply in the operator's name; fields that others set by hand are taken
        back."""
        ref = Ref(manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"])
        path = self._path(ref) + ("/status" if is_status else "")
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._request("PATCH", path, manifest, "application/apply-patch+yaml", query)

    async def merge(self, ref: Ref, patch: Json) -> Json:
        """A JSON merge patch. Preconditions stand in the patch's metadata."""
        query = {"fieldManager": FIELD_MANAGER}
        path = self._path(ref)
        return await self._request("PATCH", path, patch, "application/merge-patch+json", query)

    async def delete(self, ref: Ref, uid: str, resource_version: str) -> None:
        """Delete exactly this object in this state; its dependents go in the background."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, "resourceVersion": resource_version},
            "propagationPolicy": "Background",
        }
        await self._request("DELETE", self._path(ref), body)

    async def evict(self, ref: Ref, uid: str, resource_version: str) -> None:
        """Evict exactly this pod in this state: as far as its disruption budget lets it go."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": ref.name, "namespace": self.namespace},
            "deleteOptions": {"preconditions": preconditions},
        }
        await self._request("POST", f"{self._path(ref)}/eviction", body)

    async def _list(self, kind: Kind, selector: str) -> AsyncIterator[Json]:
        query = {"limit": str(PAGE_OBJECTS), "labelSelector": selector}
        while True:
            page = await self._request("GET", self._folder(kind), query=query)
            for item in page.get("items") or ():
                yield {"apiVersion": kind.api_version, "kind": kind.name, **item}
            query["continue"] = page.get("metadata", {}).get("continue") or ""
            if not query["continue"]:
                return

    def _folder(self, kind: Kind) -> str:
        base = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
        return f"{base}/namespaces/{self.namespace}/{kind.plural}"

    def _path(self, ref: Ref) -> str:
        return f"{self._folder(BY_NAME[ref.api_version, ref.kind])}/{ref.name}"

    async def _request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        content_type: str = "application/json",
        query: dict[str, str] | None = None,
    ) -> Json:
        try:
            answer = await self._send(method, path, body, content_type, query, is_first=True)
            if answer.status_code == UNAUTHORIZED:
                # The token has run out; kr8s reads it again where a failure is an exception.
                answer = await self._send(method, path, body, content_type, query, is_first=False)
        except kr8s.ServerError as error:
            answer = _find_answer(error)
        except (httpx.HTTPError, kr8s.APITimeoutError, OSError, ssl.SSLError) as error:
            raise ApiUnreachable(f"{method} {path}: {error!r}") from error
        return _read(answer)

    async def _send(
        self,
        method: str,
        path: str,
        body: Json | None,
        content_type: str,
        query: dict[str, str] | None,
        *,
        is_first: bool,
    ) -> httpx.Response:
        if method != "GET":
            self._check()
        async with self._api.call_api(
            method=method,
            base=path,
            version="",
            raise_for_status=not is_first,
            content=None if body is None else orjson.dumps(body),
            headers={"Content-Type": content_type},
            params={key: value for key, value in (query or {}).items() if value},
            timeout=REQUEST_S,
        ) as answer:
            return answer


def _read_login(auth: Any) -> Login:
    return Login(
        server=str(auth.server),
        authority_file=_format(auth.server_ca_file),
        certificate_file=_format(auth.client_cert_file),
        key_file=_format(auth.client_key_file),
        tls_server_name=auth.tls_server_name,
        token=auth.token,
    )


def _format(path: Any) -> str | None:
    return None if path is None else str(path)


def _find_answer(error: kr8s.ServerError) -> httpx.Response:
    return error.response if error.response is not None else httpx.Response(500)


def _read(answer: httpx.Response) -> Json:
    if not answer.is_success:
        raise make_refusal(answer.status_code, answer.content)
    return _parse(answer.content)


def make_refusal(status: int, body: bytes) -> Refused:
    """What an answer of that status and body refuses: the API server's Status, or else the text."""
    document = _parse(body)
    is_retryable = status >= _RETRYABLE_FROM or status in {_TOO_MANY, _CONFLICT}
    code = str(document.get("reason") or f"Http{status}")
    message = str(document.get("message") or body.decode(errors="replace")[:500])
    return Refused(status, Problem(code, message, is_retryable))


def _parse(body: bytes) -> Json:
    try:
        document = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}
