"""The way to the Kubernetes API: `kubectl get --raw`: whatever logs a person in, logs this in.

Exec plugins, contexts, proxies and impersonation are kubectl's matter, and a plugin of kubectl has
kubectl at hand. Everything here only reads, but for a token that is asked for, which leaves no
object behind. A failure becomes one `AccessError` with a sentence and
what to do next; which failure it is, is read from what kubectl says on standard error.

Called by every command of this package. Source: docs/kubernetes/kubectl.md "Rights".
"""

from __future__ import annotations

import enum
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import orjson

from duramen_operator.names import GROUP, VERSION

_POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_TIMEOUT_S: Final = 30.0
_SENTENCE_CHARS_MAX: Final = 400


class Trouble(enum.Enum):
    """Why the API gave no answer."""

    NO_KUBECTL = "no kubectl"
    NO_KUBECONFIG = "no kubeconfig"
    UNREACHABLE = "unreachable"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not found"
    NO_ENDPOINT = "no endpoint"
    OTHER = "other"


ADVICE: Final[Mapping[Trouble, str]] = {
    Trouble.NO_KUBECTL: "install kubectl, or put it on the PATH",
    Trouble.NO_KUBECONFIG: "name one with --kubeconfig or KUBECONFIG, and a --context of it",
    Trouble.UNREACHABLE: "see that the API server runs: kubectl version",
    Trouble.UNAUTHENTICATED: "log in anew, then see who you are: kubectl auth whoami",
    Trouble.FORBIDDEN: "ask for rights (docs/kubernetes/kubectl.md); see kubectl auth can-i --list",
    Trouble.NOT_FOUND: "see what there is: kubectl get duramen --all-namespaces",
    Trouble.NO_ENDPOINT: "see which pods are not ready: kubectl duramen status",
    Trouble.OTHER: "see what kubectl itself says: kubectl get duramen",
}

_SIGNS: Final = (
    (Trouble.FORBIDDEN, r"\(Forbidden\)|is forbidden"),
    (Trouble.UNAUTHENTICATED, r"\(Unauthorized\)|must be logged in|getting credentials"),
    (Trouble.NO_ENDPOINT, r"no endpoints available|error trying to reach service|\(BadGateway\)"),
    (Trouble.NOT_FOUND, r"\(NotFound\)|could not find the requested resource"),
    (
        Trouble.NO_KUBECONFIG,
        r"context .* does not exist|current-context|no such file|invalid configuration"
        r"|error loading config|connection to the server localhost:8080 was refused",
    ),
    (
        Trouble.UNREACHABLE,
        r"Unable to connect|was refused|i/o timeout|no such host|x509|network is unreachable"
        r"|deadline exceeded|connection reset",
    ),
)
"""What kubectl prints → what it means; the first that fits."""


class AccessError(Exception):
    """The API gave no answer: why, in a sentence for people."""

    def __init__(self, trouble: Trouble, sentence: str, advice: str | None = None) -> None:
        super().__init__(sentence)
        self.trouble = trouble
        self.advice = ADVICE[trouble] if advice is None else advice


class Kubectl:
    """One kubeconfig, context and namespace; None leaves the choice to kubectl."""

    def __init__(
        self,
        *,
        kubeconfig: Path | None = None,
        context: str | None = None,
        namespace: str | None = None,
    ) -> None:
        self._flags = [
            *([f"--kubeconfig={kubeconfig}"] if kubeconfig is not None else []),
            *([f"--context={context}"] if context is not None else []),
        ]
        self._namespace = namespace

    @property
    def namespace(self) -> str:
        """The namespace that was named, else the context's, else `default`.

        Raises:
            AccessError: the kubeconfig cannot be read.
        """
        if self._namespace is None:
            self._namespace = self._find_namespace()
        return self._namespace

    def command(self, *arguments: str) -> list[str]:
        """The command line of one kubectl.

        Raises:
            AccessError: there is no kubectl.
        """
        program = shutil.which("kubectl")
        if program is None:
            raise AccessError(Trouble.NO_KUBECTL, "there is no kubectl on the PATH")
        return [program, *self._flags, *arguments]

    def get(self, path: str, **query: str | int) -> Any:
        """The JSON that lies at a path of the API.

        Raises:
            AccessError: there is none, or it may not be had.
        """
        answer = self.get_text(path, **query)
        try:
            return orjson.loads(answer)
        except orjson.JSONDecodeError as error:
            raise AccessError(Trouble.OTHER, f"{path} answers with no JSON: {error}") from None

    def get_text(self, path: str, **query: str | int) -> bytes:
        """What lies at a path of the API, such as the log of a pod.

        Raises:
            AccessError: there is none, or it may not be had.
        """
        where = f"{path}?{urlencode(query)}" if query else path
        return self._run("get", "--raw", where)

    def list_custom(self, plural: str) -> list[dict[str, Any]]:
        """The namespace's objects of one kind of Duramen's.

        Raises:
            AccessError: as `get`; without the kinds themselves the sentence says so.
        """
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{quote(self.namespace)}/{plural}"
        try:
            items: list[dict[str, Any]] = self.get(path)["items"]
        except AccessError as error:
            if error.trouble is not Trouble.NOT_FOUND:
                raise
            raise AccessError(
                Trouble.NOT_FOUND,
                f"this Kubernetes has no {plural}.{GROUP}: no Duramen, or an older one",
                "install or upgrade it with the chart, as docs/kubernetes/quickstart.md says",
            ) from None
        return items

    def list_plain(self, plural: str, *, group: str = "", **query: str) -> list[dict[str, Any]]:
        """The namespace's objects of one of Kubernetes' own kinds.

        Raises:
            AccessError: as `get`.
        """
        root = f"/apis/{group}" if group else "/api/v1"
        path = f"{root}/namespaces/{quote(self.namespace)}/{plural}"
        items: list[dict[str, Any]] = self.get(path, **query)["items"]
        return items

    def merge(self, what: str, patch: dict[str, Any]) -> None:
        """A JSON merge patch of an object of the namespace, such as `bookies.duramen.io/main-0`.

        Raises:
            AccessError: there is none, it may not be changed, or the API server refuses the change.
        """
        text = orjson.dumps(patch).decode()
        where = f"--namespace={self.namespace}"
        self._run("patch", what, where, "--type=merge", f"--patch={text}")

    def request_token(self, namespace: str, account: str, audience: str, life_s: int) -> str:
        """A new token of a service account, for this audience alone.

        Args:
            life_s: 600 or more; the API server may make it shorter.

        Raises:
            AccessError: there is no such account, or it may not be had.
        """
        answer = self._run(
            "create", "token", account, f"--namespace={namespace}", f"--audience={audience}",
            f"--duration={life_s}s",
        )  # fmt: skip
        return answer.decode().strip()

    def _find_namespace(self) -> str:
        wanted = ("config", "view", "--minify", "--output=jsonpath={..namespace}")
        try:
            return self._run(*wanted).decode().strip() or "default"
        except AccessError as error:
            if error.trouble is not Trouble.NO_KUBECONFIG:
                raise
            if _POD_NAMESPACE.is_file():  # kubectl takes the pod's service account
                return _POD_NAMESPACE.read_text(encoding="utf-8").strip()
            text = f"there is no kubeconfig, or it does not fit: {error}"
            raise AccessError(error.trouble, text) from None

    def _run(self, *arguments: str) -> bytes:
        command = self.command(*arguments)
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, check=False,
                timeout=_TIMEOUT_S, env=os.environ | {"LC_ALL": "C.UTF-8"},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            text = f"kubectl {arguments[0]} gave no answer within {_TIMEOUT_S:g} s"
            raise AccessError(Trouble.UNREACHABLE, text) from None
        if done.returncode:
            raise read_trouble(done.stderr.decode(errors="replace"))
        return done.stdout


def read_trouble(said: str) -> AccessError:
    """What kubectl printed on standard error, as an error of ours."""
    lines = [line for line in said.splitlines() if line.strip() and not _is_noise(line)]
    sentence = " ".join(lines).strip()[:_SENTENCE_CHARS_MAX] or "kubectl failed and said nothing"
    for trouble, sign in _SIGNS:
        if re.search(sign, sentence):
            return AccessError(trouble, sentence)
    return AccessError(Trouble.OTHER, sentence)


def _is_noise(line: str) -> bool:
    """Lines of kubectl's own log, such as `E1122 16:55:01.123456 … memcache.go:265] …`."""
    return re.match(r"[IWEF]\d{4} \d\d:", line) is not None
