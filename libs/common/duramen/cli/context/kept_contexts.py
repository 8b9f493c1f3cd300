"""The file of contexts: for each name where a cluster is, and which files show who calls.

`$XDG_CONFIG_HOME/duramen/contexts.json`, else below `~/.config`, mode 0600 in a folder of mode
0700. It has no secret itself, but a command whose output is one; so whoever may change it may run
commands as its owner, and a file that is open to others is refused.

Called by `cli.command` and the commands of `context`. Source: docs/cli.md "Contexts".
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from duramen.client.credentials.credential import Credential
from duramen.client.credentials.tokens import TokenCommand, TokenFile, TokenSource
from duramen.runtime.folders import write_private
from duramen.runtime.identity.generations import locked
from duramen.runtime.identity.names import IdentityError

VERSION: Final = 1
CONTEXT_COUNT_MAX: Final = 256
NO_CONTEXT: Final = "none"
"""What stands in the place of a name where no context is meant."""

_FILE_BYTES_MAX: Final = 1 << 20
_FILE: Final = "contexts.json"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class ContextError(Exception):
    """The file of contexts cannot be used; the text says why and what to do."""


class Context(NamedTuple):
    """One cluster: where it is, and what is shown to it."""

    url: str | None = None
    admin_url: str | None = None
    token_file: str | None = None
    token_command: str | None = None
    identity: str | None = None
    ca: str | None = None

    @property
    def shown(self) -> str:
        """What is shown, for people."""
        told = (
            ("token file", self.token_file),
            ("token command", self.token_command),
            ("identity", self.identity),
        )
        return ", ".join(f"{what} {value}" for what, value in told if value) or "nothing"

    def make_credential(self, *, is_admin: bool) -> Credential:
        """A token for public ports, a certificate for admin ports."""
        ca = None if self.ca is None else Path(self.ca)
        if is_admin:
            return Credential(identity=Path(self.identity) if self.identity else None, ca=ca)
        token: TokenSource | None = None
        if self.token_file is not None:
            token = TokenFile(Path(self.token_file))
        elif self.token_command is not None:
            token = TokenCommand(self.token_command)
        return Credential(token=token, ca=ca)

    def to_json(self) -> dict[str, str]:
        """The fields that it has."""
        return {name: value for name, value in self._asdict().items() if value is not None}


@dataclass(frozen=True, slots=True)
class KeptContexts:
    """All of the file."""

    contexts: Mapping[str, Context]
    used: str | None = None
    """The name of the one that commands go by."""

    def find(self, name: str | None) -> tuple[str, Context] | None:
        """The one of a name; with None the one in use, None if there is none.

        Raises:
            ContextError: there is none of that name.
        """
        name = self.used if name is None else name
        if name is None:
            return None
        if name not in self.contexts:
            raise ContextError(f"no context {name!r}: see duramen context list")
        return name, self.contexts[name]


def find_folder() -> Path:
    """Where the file lies."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(given) if given.startswith("/") else Path("~/.config").expanduser()
    return base / "duramen"


def check_name(name: str) -> str:
    """The name itself.

    Raises:
        ContextError: it is none.
    """
    if name == NO_CONTEXT:
        raise ContextError(f"{name!r} says to go by no context: choose another name")
    if not _NAME.fullmatch(name):
        raise ContextError(
            f"{name[:100]!r} is no name of a context: write 1 to 63 letters, digits, '.', '_', '-'"
        )
    return name


def read_contexts() -> KeptContexts:
    """What the file has; nothing where there is no file.

    Raises:
        ContextError: it is open to others, or none of ours.
    """
    path = find_folder() / _FILE
    try:
        with path.open("rb") as file:
            _judge(path, os.fstat(file.fileno()))
            content = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return KeptContexts({})
    except OSError as error:
        raise ContextError(f"{path}: {error.strerror}") from None
    try:
        return _parse(orjson.loads(content))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ContextError(
            f"{path} is no file of contexts of this version: put it right, or remove it"
        ) from None


def change_contexts(change: Callable[[KeptContexts], KeptContexts]) -> KeptContexts:
    """Read, change and write the file, while nobody else does.

    Raises:
        ContextError: as `read_contexts`, or what `change` raises.
        OSError: it cannot be written.
    """
    folder = find_folder()
    try:
        with locked(folder):
            changed = change(read_contexts())
            if len(changed.contexts) > CONTEXT_COUNT_MAX:
                raise ContextError(f"there are {CONTEXT_COUNT_MAX} contexts: remove some")
            write_private(folder / _FILE, _encode(changed))
    except IdentityError as error:
        raise ContextError(str(error)) from None
    return changed


def _judge(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise ContextError(f"{path} belongs to another user: remove it")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ContextError(f"{path} is open to others: see that it is yours, and chmod 600 it")


def _encode(kept: KeptContexts) -> bytes:
    document = {
        "v": VERSION,
        "used": kept.used,
        "contexts": {name: one.to_json() for name, one in sorted(kept.contexts.items())},
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"


def _parse(document: Any) -> KeptContexts:
    if document["v"] != VERSION:
        raise ValueError("another version")
    contexts = {}
    for name, fields in document["contexts"].items():
        if not _NAME.fullmatch(name) or not all(isinstance(one, str) for one in fields.values()):
            raise ValueError("no context")
        contexts[name] = Context(**fields)
    used = document.get("used")
    if used is not None and used not in contexts:
        raise ValueError("the context in use is not there")
    return KeptContexts(contexts, used)
