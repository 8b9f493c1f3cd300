"""Where a node is reached: its plain addresses, and beside them those with TLS.

`data_url` and `admin_url` are what each version knows; a node that turns has two fields more. Who
has an identity takes TLS where there is some, and only who turns itself goes the other way as well.

Called by `registry`'s users, `security` and `public.forwarding`.
Source: docs/protocol/turning-on.md "What is registered", "Which way a call takes".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SECURE_SCHEME: Final = "https://"
TLS_DATA_URL: Final = "tls_data_url"
TLS_ADMIN_URL: Final = "tls_admin_url"


def find_tls_url(fields: Mapping[str, Any], field: str) -> str | None:
    """What a registration says besides of TLS; None: nothing."""
    url = fields.get(field)
    return url if isinstance(url, str) and url.startswith(SECURE_SCHEME) else None


def list_urls(fields: Mapping[str, Any], kind: str, *, may_be_plain: bool) -> list[str]:
    """Where whoever has an identity tries a port of a node, the best way first; none: nowhere.

    Args:
        kind: `data`, for the public port too, or `admin`.
        may_be_plain: whether plain text does, where TLS was not to be had.
    """
    url, tls_url = fields.get(f"{kind}_url"), find_tls_url(fields, f"tls_{kind}_url")
    if not isinstance(url, str):
        return []
    if tls_url is None:
        return [url]
    return [tls_url, url] if may_be_plain else [tls_url]


def find_next_url(fields: Mapping[str, Any], kind: str, scheme: str) -> str | None:
    """Where whoever came by this scheme is sent on to: by TLS to TLS, where a node has both.

    Args:
        kind: as of `list_urls`.
    """
    tls_url = find_tls_url(fields, f"tls_{kind}_url") if scheme == "https" else None
    url = tls_url or fields.get(f"{kind}_url")
    return url if isinstance(url, str) else None


def has_tls(fields: Mapping[str, Any]) -> bool:
    """Whether whoever has an identity alone reaches a node; of its admin port, which each has."""
    is_secure = str(fields.get("admin_url", "")).startswith(SECURE_SCHEME)
    return is_secure or find_tls_url(fields, TLS_ADMIN_URL) is not None


def has_plain(fields: Mapping[str, Any]) -> bool:
    """Whether whoever has none reaches it."""
    return not str(fields.get("admin_url", "")).startswith(SECURE_SCHEME)


def is_turned(fields: Mapping[str, Any]) -> bool:
    """Whether whoever has an identity reaches a node, and nobody else."""
    return not has_plain(fields)
