"""Where a client's token comes from: a text, a file that may change, or a command.

A token is read when a call needs it, and anew after a port refused it. Its text is in no `repr`, no
error and no pickle: what is shown is where it comes from.

Called by `credential` and `rest_client`. Source: docs/protocol/credentials.md "How clients show
it".
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any, Final, NoReturn

from duramen.errors import DuramenError

TOKEN_CHARACTERS_MAX: Final = 8_192
COMMAND_S: Final = 30.0
_OUTPUT_BYTES_MAX: Final = 65_536
_VISIBLE: Final = re.compile(f"[!-~]{{1,{TOKEN_CHARACTERS_MAX}}}")


class TokenSource(abc.ABC):
    """Gives the token that a call shows."""

    @abc.abstractmethod
    async def read(self) -> str:
        """The token.

        Raises:
            DuramenError: `unauthenticated`: there is none to be had.
        """

    @abc.abstractmethod
    async def renew(self, refused: str) -> str | None:
        """Another token than one that a port did not believe; None: there is no other.

        Raises:
            DuramenError: as `read`.
        """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """What it is for people, without the token."""

    def __repr__(self) -> str:
        return f"<{self.name}>"


class GivenToken(TokenSource):
    """A token that the program itself has as text."""

    def __init__(self, text: str) -> None:
        """Take a text.

        Raises:
            DuramenError: `invalid_argument`: it is no token's.
        """
        if not _VISIBLE.fullmatch(text):
            raise DuramenError("invalid_argument", f"token: {_EXPECTED}", field="token")
        self._text = text

    async def read(self) -> str:
        """The text."""
        return self._text

    async def renew(self, refused: str) -> str | None:
        """There is no other."""
        return None

    @property
    def name(self) -> str:
        """Says nothing of the text."""
        return "the token that was given"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a token that was given as text is not pickled: give its file instead")


class TokenFile(TokenSource):
    """A token in a file, which whoever renews it writes anew.

    One that is empty for the moment, as a shell leaves it before the command writes that fills it,
    leaves the text that was there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None
        self._text = ""

    async def read(self) -> str:
        """The text of the file as it is now."""
        return self._look()

    async def renew(self, refused: str) -> str | None:
        """Read it whatever its times say: some file systems tell them in seconds."""
        self._seen = None
        text = self._look()
        return None if text == refused else text

    @property
    def name(self) -> str:
        """Names the file."""
        return f"the token in {self._path}"

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenFile, (self._path,)

    def _look(self) -> str:
        try:
            found = self._path.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen != self._seen:
                with self._path.open("rb") as file:
                    content = file.read(_OUTPUT_BYTES_MAX + 1)
                if self._text and not content.strip():
                    return self._text
                self._text = _parse_token(content, self._path)
                self._seen = seen
        except OSError as error:
            detail = f"{self._path}: {error.strerror}: a token is expected there"
            raise DuramenError("unauthenticated", detail) from None
        return self._text


class TokenCommand(TokenSource):
    """A token that a command writes to its standard output."""

    def __init__(self, command: str) -> None:
        """Take a command line, which is cut as a shell does and run without one.

        Raises:
            DuramenError: `invalid_argument`: it cannot be cut into words.
        """
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            detail = f"token command: {error}"
            raise DuramenError("invalid_argument", detail, field="token_command") from None
        if not self._words:
            detail = "token command: a program is expected"
            raise DuramenError("invalid_argument", detail, field="token_command")
        self._command = command
        self._text: str | None = None
        self._running = asyncio.Lock()

    async def read(self) -> str:
        """What the command wrote when it ran last; it runs if it has not yet."""
        async with self._running:
            if self._text is None:
                self._text = await self._run()
            return self._text

    async def renew(self, refused: str) -> str | None:
        """Run it again, once for all who were refused with the same text."""
        async with self._running:
            if self._text in (None, refused):
                self._text = await self._run()
            return None if self._text == refused else self._text

    @property
    def name(self) -> str:
        """Names the program; its arguments are its own."""
        return f"the token of the command {self._words[0]}"

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenCommand, (self._command,)

    async def _run(self) -> str:
        program = self._words[0]
        try:
            async with asyncio.timeout(COMMAND_S):
                output, status = await _run_words(self._words)
        except TimeoutError:
            raise DuramenError(
                "unauthenticated", f"{program} gave no token within {COMMAND_S:g} s"
            ) from None
        except OSError as error:
            detail = f"{program} cannot be run for a token: {error.strerror}"
            raise DuramenError("unauthenticated", detail) from None
        if status:
            raise DuramenError("unauthenticated", f"{program} ended with status {status}: no token")
        return _parse_token(output, program)


async def _run_words(words: list[str]) -> tuple[bytes, int]:
    """What a program writes, and its status; it is ended with whoever waits for it."""
    loop = asyncio.get_running_loop()
    transport, output = await loop.subprocess_exec(
        lambda: _Output(loop.create_future()),
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stderr=None,
        start_new_session=True,
    )
    try:
        await output.ended
        return bytes(output.content), transport.get_returncode() or 0
    finally:
        if transport.get_returncode() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(transport.get_pid(), signal.SIGKILL)
        # Also the pipe: who left the program's group may hold its other end.
        transport.close()


class _Output(asyncio.SubprocessProtocol):
    """What a program writes, until it has ended or has written too much."""

    def __init__(self, ended: asyncio.Future[None]) -> None:
        self.content = bytearray()
        self.ended = ended

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """More of it."""
        self.content += data
        if len(self.content) > _OUTPUT_BYTES_MAX:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, and all that it wrote is there."""
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


_EXPECTED: Final = f"1 to {TOKEN_CHARACTERS_MAX} visible characters of ASCII are expected"


def _parse_token(content: bytes, place: object) -> str:
    """The one token that is there.

    Raises:
        DuramenError: `unauthenticated`: there is none, or more than that.
    """
    text = content.strip().decode("ascii", errors="replace")
    if not _VISIBLE.fullmatch(text):
        raise DuramenError("unauthenticated", f"{place} holds no token: {_EXPECTED}")
    return text
