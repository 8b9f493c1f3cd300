"""How a standing stream is asked for, and taken: the headers of its one request and its answer.

Called by `runtime.standing`. Source: docs/protocol/standing-streams.md "The port".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from duramen.wire.edge.gate import RequestHead
from duramen.wire.frame import IDENTITY_HEADER, PROCESS_HEADER

_VERSION_HEADER: Final = "duramen-standing"
_VERSION: Final = "1"
_MEDIA: Final = "application/octet-stream"

Headers = Sequence[tuple[str, str]]


class StreamPlace(NamedTuple):
    """Where a stream is asked for."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """As HTTP has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_stream_url(url: str) -> StreamPlace:
    """Where a node says that it serves streams.

    Raises:
        ValueError: it says no such thing.
    """
    parts = urlsplit(url)
    if parts.hostname is None or parts.port is None or not parts.path:
        raise ValueError(f"{url!r} names no host, port and path")
    return StreamPlace(parts.scheme, parts.hostname, parts.port, parts.path)


def make_request(place: StreamPlace, process: str, identity: str | None) -> list[tuple[str, str]]:
    """The headers by which a process asks for a stream."""
    headers = [
        (":method", "POST"),
        (":scheme", place.scheme),
        (":authority", place.authority),
        (":path", place.path),
        ("content-type", _MEDIA),
        (_VERSION_HEADER, _VERSION),
        (PROCESS_HEADER, process),
    ]
    return headers if identity is None else [*headers, (IDENTITY_HEADER, identity)]


class StreamRequest(NamedTuple):
    """What came of that.

    Attributes:
        process: None: it is not named once.
        identities: every header of identity.
    """

    head: RequestHead
    path: str
    is_of_version: bool
    process: str | None
    identities: list[str]


def read_request(headers: Headers) -> StreamRequest:
    """A request for a stream, to be judged."""
    fields = dict(headers)
    head = RequestHead(
        fields.get(":method", ""),
        fields.get("host") or fields.get(":authority", ""),
        fields.get("origin"),
        fields.get("sec-fetch-site"),
        fields.get("content-type"),
    )
    return StreamRequest(
        head,
        fields.get(":path", ""),
        _find(headers, _VERSION_HEADER) == _VERSION,
        _find(headers, PROCESS_HEADER),
        [value for name, value in headers if name == IDENTITY_HEADER],
    )


def make_answer(status: int) -> list[tuple[str, str]]:
    """The headers of the answer; 200 takes the stream."""
    answer = [(":status", str(status))]
    return [*answer, (_VERSION_HEADER, _VERSION)] if status == 200 else answer


def find_refusal(headers: Headers) -> str | None:
    """Why an answer takes no stream; None: it does."""
    status, version = _find(headers, ":status"), _find(headers, _VERSION_HEADER)
    if (status, version) == ("200", _VERSION):
        return None
    return f"the peer answers {status} to a standing stream of version {_VERSION}"


def _find(headers: Headers, name: str) -> str | None:
    """A header's value; None: it is not there, or more than once."""
    found = [value for key, value in headers if key == name]
    return found[0] if len(found) == 1 else None
