"""An API token that is kept in a file: used again while it counts, made anew else.

Its node is written before its file, so that the file never has a text that nobody believes. A
process that dies between the two leaves a token whose text nobody has.

Called by the supervisor of a local cluster, and by `duramen access token`. Source:
docs/protocol/credentials.md "How clients show it".
"""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Final

from duramen.core.rights.grants import GrantScope, Principal
from duramen.core.rights.token_scopes import TokenScope
from duramen.core.rights.verbs import Verb
from duramen.runtime.credentials.access_tokens.token_text import (
    TokenText,
    make_token,
    take_token_apart,
)
from duramen.runtime.credentials.principals import CredentialRefusedError
from duramen.runtime.folders import write_private
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.wire.metadata_json import MetadataJsonError, Paths
from duramen.wire.nodes.access_tokens import (
    AccessToken,
    encode_access_token,
    read_access_token,
)

LIFE_S: Final = 365 * 86_400
RENEWED_BEFORE_S: Final = 30 * 86_400
_ALL: Final = (TokenScope(frozenset(Verb), GrantScope()),)
_TEXT_BYTES_MAX: Final = 1_024


async def keep_token(
    store: MetadataStore, paths: Paths, file: Path, *, issued_by: Principal, note: str, now_s: int
) -> TokenText:
    """The token of a file, with all verbs on everything; written anew where it counts no more.

    Args:
        issued_by: whom its node names.
        note: what it is for.

    Raises:
        MetadataError: ZooKeeper gives no answer, or refuses it.
        OSError: the file cannot be read or written.
    """
    kept = await asyncio.to_thread(_read, file)
    if kept is not None and await _counts(store, paths, kept, now_s):
        return kept
    made = make_token()
    await write_token(store, paths, made, issued_by, note=note, now_s=now_s)
    await asyncio.to_thread(write_private, file, f"{made.text}\n".encode())
    return made


async def write_token(
    store: MetadataStore,
    paths: Paths,
    made: TokenText,
    issued_by: Principal,
    *,
    note: str,
    now_s: int,
    life_s: int = LIFE_S,
) -> None:
    """Have a token count, with all verbs on everything, as whoever may write its node in ZooKeeper.

    So the first grant is given where no `duramen run` keeps a token.

    Raises:
        MetadataError: ZooKeeper gives no answer, or refuses it.
    """
    ends_s = now_s + life_s
    token = AccessToken(made.token_id, made.hash, issued_by, _ALL, now_s, ends_s, note)
    path = paths.access_token(made.token_id)
    await store.create(path, encode_access_token(token), make_parents=True)


async def _counts(store: MetadataStore, paths: Paths, kept: TokenText, now_s: int) -> bool:
    path = paths.access_token(kept.token_id)
    await store.sync(path)
    found = await store.get(path)
    if found is None:
        return False
    try:
        token = read_access_token(found.data, kept.token_id)
    except MetadataJsonError:
        return False
    is_long = token.expires_s - now_s > RENEWED_BEFORE_S
    return is_long and (token.secret_hash, token.scopes) == (kept.hash, _ALL)


def _read(file: Path) -> TokenText | None:
    try:
        with file.open("rb") as opened:
            if stat.S_IMODE(os.fstat(opened.fileno()).st_mode) & 0o077:
                return None  # others may have it, and clients do not take it any more
            content = opened.read(_TEXT_BYTES_MAX)
        return take_token_apart(content.decode("ascii").strip())
    except (FileNotFoundError, UnicodeDecodeError, CredentialRefusedError):
        return None
