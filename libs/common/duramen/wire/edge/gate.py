"""Whom a port answers: judged by the name it was called by, the page that calls, the body's type.

A browser sends the requests of any page to any address, this machine's loopback too, and shows the
page what comes back wherever page and server seem to be one. So a request is refused

- by a name that nobody gave this server: a stranger's name that resolves to our address makes the
  stranger's page one of ours (DNS rebinding). An address as such is no name, and passes;
- of a page that is neither ours nor named to us: what it asks would be done, read or not;
- with a body that a page may send unasked (`text/plain`, a form, no type) where JSON is meant.

Who is no browser says nothing of pages, and passes: this is no authentication. Pure; `runtime.edge`
puts it around every port. Source: the Fetch standard "HTTP extensions", RFC 9110 section 7.4 and
15.5.20; ADR 0025, docs/protocol/rest.md "Names and pages".
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, Self

from duramen.errors import DuramenError

JSON: Final = "application/json"
_FRAME_TYPES: Final = (JSON, "application/octet-stream")
_HARMLESS_METHODS: Final = ("GET", "HEAD", "OPTIONS")
_NEAR_SITES: Final = ("same-origin", "same-site", "none")

_NAME_CHARACTERS_MAX: Final = 253
_SHOWN_CHARACTERS_MAX: Final = 100
_HOSTS_KEPT_COUNT: Final = 1_024
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_HOST: Final = re.compile(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::[0-9]*)?")
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}


class Bodies(enum.Enum):
    """Which types the bodies of a route have."""

    JSON = "JSON, and nothing without a type"
    FRAMES = "frames and JSON of our own programs, which may leave the type out"
    OWN = "its own, which the route looks at"


class RequestHead(NamedTuple):
    """What a request says of itself; a header that came twice is joined by commas."""

    method: str
    host: str = ""
    origin: str | None = None
    site: str | None = None
    """Of Sec-Fetch-Site."""

    media: str | None = None
    has_body: bool = False
    """As far as the head tells: a length other than 0, or none and chunks."""


@dataclass(frozen=True, slots=True)
class Gate:
    """What one port goes by.

    Args:
        names: of this server, beside those of loopback; in small letters.
        origins: whose pages may call, beside the server's own; as browsers write them.
    """

    names: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()

    @classmethod
    def of(cls, hosts: Iterable[str], origins: Iterable[str] = ()) -> Self:
        """The gate of a server that is reached under these hosts: names and addresses, no ports."""
        bare = [host.strip("[]") for host in hosts]
        names = {find_name(f"[{host}]" if ":" in host else host) for host in bare}
        return cls(frozenset(name for name in names if name), frozenset(origins))

    def judge(self, head: RequestHead, bodies: Bodies) -> DuramenError | None:
        """Why a request is refused; None: it is not.

        Returns:
            `misdirected` (421), `forbidden` (403) or `unsupported_media` (415), with the header
            that is at fault as the field.
        """
        name = find_name(head.host)
        if name is not None and name not in self.names and not is_loopback(name):
            return _misdirected(name)
        if head.origin is not None:
            if head.origin not in self.origins and not _is_own(head.origin, head.host):
                return _forbidden("Origin", f"a page of {_shorten(head.origin)}")
        elif head.site is not None and head.site not in _NEAR_SITES:
            return _forbidden("Sec-Fetch-Site", "a page of another site")
        if head.method in _HARMLESS_METHODS or bodies is Bodies.OWN:
            return None
        return _judge_type(head, bodies)


@lru_cache(_HOSTS_KEPT_COUNT)
def find_name(host: str) -> str | None:
    """The name in a Host header, in small letters; None: an address, or nothing.

    What cannot be read is a name that nobody has.
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return host.lower()
    text = found["name"] if found["v6"] is None else found["v6"]
    try:
        # As browsers write them: other ways to write an address are names here.
        (ipaddress.IPv4Address if found["v6"] is None else ipaddress.IPv6Address)(text)
    except ValueError:
        return text.lower().removesuffix(".") or None
    return None


def is_loopback(name: str) -> bool:
    """Whether a name can only mean this machine (RFC 6761)."""
    return name == "localhost" or name.endswith(".localhost")


def is_here(host: str) -> bool:
    """Whether a name or an address can only mean this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return is_loopback(host.lower().removesuffix("."))


def parse_name(text: str) -> str:
    """A name of the server as somebody gives it, in small letters.

    Raises:
        ValueError: it is none: a URL, a port, an address, a pattern.
    """
    name = text.lower().removesuffix(".")
    if len(name) > _NAME_CHARACTERS_MAX or not _NAME.fullmatch(name) or find_name(name) is None:
        raise ValueError(
            f"{_shorten(text)!r} is no name of a host: write it without http:// and port, such as "
            "logs.example.org; addresses need not be named"
        )
    return name


def _is_own(origin: str, host: str) -> bool:
    """Whether the page came from where the request goes; TLS may end in front of this server."""
    scheme, _, place = origin.partition("://")
    port = _DEFAULT_PORTS.get(scheme)
    if port is None or not place:
        return False
    return _add_port(place, port) == _add_port(host.lower(), port)


def _add_port(place: str, port: str) -> str:
    return place if re.search(r":[0-9]+\Z", place) else f"{place}:{port}"


def _judge_type(head: RequestHead, bodies: Bodies) -> DuramenError | None:
    if head.media is None:
        is_refused = head.has_body and bodies is Bodies.JSON
    else:
        taken = (JSON,) if bodies is Bodies.JSON else _FRAME_TYPES
        is_refused = head.media.partition(";")[0].strip().lower() not in taken
    return refuse_type(head.media) if is_refused else None


def refuse_type(media: str | None) -> DuramenError:
    """The refusal of a body that is not said to be JSON."""
    given = "nothing" if media is None else repr(_shorten(media))
    detail = f"the body of this call is {JSON}, and Content-Type says {given}"
    return DuramenError("unsupported_media", detail, field="Content-Type")


def _misdirected(name: str) -> DuramenError:
    shown = _shorten(name)
    detail = (
        f"this server does not go by the name {shown!r}: call it by its own name or address, or "
        f"start it with --public-name {shown}"
    )
    return DuramenError("misdirected", detail, field="Host")


def _forbidden(field: str, who: str) -> DuramenError:
    detail = (
        f"{who} may not call this port: its own pages may, and at a proxy's public port those of "
        "--cors-origin"
    )
    return DuramenError("forbidden", detail, field=field)


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}…"
