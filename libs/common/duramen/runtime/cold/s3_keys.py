"""Keys of a bucket from a file, in the form that all tools of S3 know, read anew when it changes.

What stands in a file stands in no environment, command line or configuration of Spark, where others
look. Only a file that `AWS_SHARED_CREDENTIALS_FILE` names is read: whoever names none goes by
variables or a role, as obstore finds them.

Called by `s3`. Source: docs/cold-store.md "Keys of a bucket".
"""

from __future__ import annotations

import configparser
import datetime as dt
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from duramen.runtime.identity.folder import read_file
from duramen.runtime.identity.names import IdentityError

if TYPE_CHECKING:
    from obstore.store import S3Credential

FILE_VARIABLE: Final = "AWS_SHARED_CREDENTIALS_FILE"
PROFILE_VARIABLE: Final = "AWS_PROFILE"
_KEY_VARIABLE: Final = "AWS_ACCESS_KEY_ID"
_PROFILE_DEFAULT: Final = "default"
_LOOK: Final = dt.timedelta(seconds=60)

_LOG: Final = logging.getLogger(__name__)


class KeysFile:
    """One section of a file of keys; called by the library of S3 whenever it needs some.

    Raises:
        ValueError: it holds no keys, or others may read it; the text has nothing of what is in it.
    """

    def __init__(self, path: Path, profile: str) -> None:
        self._path = path
        self._profile = profile
        self._kept = self._read()
        self._is_faulty = False

    def __call__(self) -> S3Credential:
        """The keys of now; while the file gives none, those that it gave before."""
        try:
            self._kept, self._is_faulty = self._read(), False
        except ValueError as error:
            if not self._is_faulty:
                _LOG.warning("the keys of before are used on: %s", error)
            self._is_faulty = True
        return {**self._kept, "expires_at": dt.datetime.now(dt.UTC) + _LOOK}

    def _read(self) -> S3Credential:
        try:
            text = read_file(self._path, is_secret=True).decode()
            parser = configparser.ConfigParser(interpolation=None, default_section="")
            parser.read_string(text)
            section = parser[self._profile]
            return {
                "access_key_id": section["aws_access_key_id"],
                "secret_access_key": section["aws_secret_access_key"],
                "token": section.get("aws_session_token"),
                "expires_at": None,
            }
        except IdentityError as error:
            raise ValueError(str(error)) from None
        except KeyError as error:
            raise ValueError(
                f"{self._path} has no {error.args[0]} of the section [{self._profile}]"
            ) from None
        except (configparser.Error, UnicodeDecodeError):
            # What a parser says of a line shows the line.
            raise ValueError(f"{self._path} is no file of keys: [SECTION], NAME = VALUE") from None


def find_keys_file() -> KeysFile | None:
    """The file that the environment names; None: none, or it holds keys itself.

    Raises:
        ValueError: as `KeysFile`.
    """
    path = os.environ.get(FILE_VARIABLE)
    if not path or os.environ.get(_KEY_VARIABLE):
        return None
    return KeysFile(Path(path), os.environ.get(PROFILE_VARIABLE) or _PROFILE_DEFAULT)
