"""A new file for an access token's text, which its owner alone may read.

It is made before the token is: else there could be a token that nobody has. A refusal leaves no
file behind, and a file that is there already is never written.

Called by `tokens`. Source: docs/cli.md "Grants and access tokens".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from duramen.cli.command import UsageError


@contextmanager
def open_token_file(path: Path) -> Iterator[Callable[[str], None]]:
    """Make the file; gives what writes a token's text into it, which is on disk then.

    Raises:
        UsageError: the file is there already, or its folder is not.
        OSError: it cannot be written.
    """
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(f"{path} is there already: give a new file") from None
    except FileNotFoundError:
        raise UsageError(f"{path.parent} is no folder that is there") from None

    def write(text: str) -> None:
        os.write(file, f"{text}\n".encode())
        os.fsync(file)

    try:
        yield write
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
