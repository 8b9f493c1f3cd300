"""The wires between the processes of a run: TCP forwarders that can be cut, no root needed.

Each port of a server process has a forwarder in front of it, which it advertises; who connects is
found by the connection's owner, once there is a cut. So a cut is between any two processes or sets
of them, in both directions or in one, silent (bytes wait and come late, as after a healed
partition) or with resets. A forwarder listens only while its process does: a dead process refuses
connections here as it would by itself.

What a cut held back is counted: a cut that held nothing back proved nothing. Called by `cluster`
(life of the servers) and `nemesis` (cuts). Source: docs/testing.md "Chaos".
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from duramen.runtime.edge.socket_table import ANY_PORT, HELD, list_sockets
from tests.chaos.waiting import wait_at_most

HOST: Final = "127.0.0.1"
UNKNOWN: Final = "?"
_PROBE_INTERVAL_S: Final = 0.01
_TAKEN_INTERVAL_S: Final = 0.5
_CONNECT_TIMEOUT_S: Final = 5.0
_BUFFER_BYTES_MAX: Final = 1 << 20

Mode = Literal["silent", "reset"]


@dataclass(eq=False, slots=True)
class Cut:
    """A partition between two sets of processes.

    Attributes:
        is_one_way: only what `a` sends to `b` is held; answers of `b` still come through.
        withheld_count: connections with bytes that waited, or attempts that were not let through.
    """

    a: frozenset[str]
    b: frozenset[str]
    is_one_way: bool = False
    mode: Mode = "silent"
    withheld_count: int = 0
    touched: set[int] = field(default_factory=set)

    def holds(self, sender: str, receiver: str) -> bool:
        """Whether bytes from `sender` to `receiver` must wait."""
        if sender in self.a and receiver in self.b:
            return True
        return not self.is_one_way and sender in self.b and receiver in self.a


class Links:
    """All forwarders of a run; lives in one event loop."""

    def __init__(self, find_pids: Callable[[], Mapping[int, str]]) -> None:
        self._find_pids = find_pids
        self._cuts: list[Cut] = []
        self._servers: dict[tuple[str, int], asyncio.Server] = {}
        self._openings: dict[tuple[str, int], asyncio.Task[None]] = {}
        """By process and port of the forwarder."""
        self._pairs: set[Pair] = set()
        self.connection_count = 0
        self.unknown_count = 0
        self.taken_count = 0
        """Attempts to listen on a port that somebody else had got."""

    # --- servers ---------------------------------------------------------------------------------

    def open_when_served(self, target: str, port: int, real_port: int) -> None:
        """Forward `port` to `real_port` from the moment when somebody listens there."""
        self._close_one(target, port)
        opening = asyncio.create_task(self._open(target, port, real_port))
        self._openings[target, port] = opening

    def is_open(self, ports: Mapping[str, int]) -> bool:
        """Whether each of these processes can be reached by this port."""
        return all(one in self._servers for one in ports.items())

    def close(self, target: str) -> None:
        """Refuse connections to a process that is dead."""
        for one, port in list(self._openings):
            if one == target:
                self._close_one(target, port)

    def _close_one(self, target: str, port: int) -> None:
        opening = self._openings.pop((target, port), None)
        if opening is not None:
            opening.cancel()
        server = self._servers.pop((target, port), None)
        if server is not None:
            server.close()

    async def stop(self) -> None:
        """Close everything."""
        for target, port in list(self._openings):
            self._close_one(target, port)
        for pair in list(self._pairs):
            pair.abort()

    async def _open(self, target: str, port: int, real_port: int) -> None:
        loop = asyncio.get_running_loop()
        while (target, port) not in self._servers:
            if not await _is_served(real_port):
                await wait_at_most(_PROBE_INTERVAL_S)
                continue
            try:
                self._servers[target, port] = await loop.create_server(
                    lambda: Pair(self, target, real_port).near, HOST, port, reuse_address=True
                )
            except OSError:
                self.taken_count += 1
                await wait_at_most(_TAKEN_INTERVAL_S)

    # --- cuts ------------------------------------------------------------------------------------

    def cut(self, cut: Cut) -> None:
        """Begin a partition."""
        self._cuts.append(cut)
        self._identify([pair for pair in self._pairs if pair.source is None])
        for pair in list(self._pairs):
            pair.review()

    def heal(self, cut: Cut) -> None:
        """End a partition; what waited is delivered now. Counts what it held back."""
        for pair in self._pairs:
            pair.count_withheld(cut)
        cut.withheld_count += len(cut.touched)
        self._cuts.remove(cut)
        for pair in list(self._pairs):
            pair.review()

    def is_holding(self, cut: Cut) -> bool:
        """Whether a cut holds, or has held, anything back."""
        for pair in self._pairs:
            pair.count_withheld(cut)
        return bool(cut.touched)

    def find_cut(self, sender: str, receiver: str) -> Cut | None:
        """The cut that holds bytes of `sender` to `receiver`; resets win."""
        found = [cut for cut in self._cuts if cut.holds(sender, receiver)]
        return next((cut for cut in found if cut.mode == "reset"), found[0] if found else None)

    def register(self, pair: Pair) -> None:
        """A connection came."""
        self.connection_count += 1
        self._pairs.add(pair)
        if self._cuts:
            self._identify([pair])

    def forget(self, pair: Pair) -> None:
        """A connection is over."""
        self._pairs.discard(pair)

    def _identify(self, pairs: Sequence[Pair]) -> None:
        """Find out which processes of this run these came from; all at once, for that takes long.

        Without a cut nobody asks: a machine that forgets 60,000 connections of other tests would
        keep this event loop, and so every wire, at it.
        """
        owners = list_owners(self._find_pids()) if pairs else {}
        for pair in pairs:
            pair.source = owners.get(pair.ports, UNKNOWN)
            self.unknown_count += pair.source == UNKNOWN


class Pair:
    """One connection: its end at the client (`near`) and its end at the server (`far`)."""

    def __init__(self, links: Links, target: str, real_port: int) -> None:
        self._links = links
        self._real_port = real_port
        self._connecting: asyncio.Task[None] | None = None
        self.source: str | None = None
        """Who connected; None: nobody has asked yet."""
        self.ports = (0, 0)
        """Those of who connected, and of the forwarder."""
        self.target = target
        self.near = _End(self)
        self.far = _End(self)
        self.near.other, self.far.other = self.far, self.near

    def on_accepted(self, peer_port: int, own_port: int) -> None:
        """A client is there; connect it on."""
        self.ports = (peer_port, own_port)
        self._links.register(self)
        self.review()
        self._connect_unless_held()

    def review(self) -> None:
        """Bring both ends in line with the cuts of this moment."""
        source = self.source or UNKNOWN
        forth = self._links.find_cut(source, self.target)
        back = self._links.find_cut(self.target, source)
        for cut in (forth, back):
            if cut is not None and cut.mode == "reset":
                cut.touched.add(id(self))
                self.abort()
                return
        self.near.hold(is_held=forth is not None)
        self.far.hold(is_held=back is not None)
        if self.near.transport is not None:
            self._connect_unless_held()

    def count_withheld(self, cut: Cut) -> None:
        """Tell a cut that is about to end whether it held bytes of this connection back."""
        if cut.mode == "reset":
            return
        source = self.source or UNKNOWN
        for end, sender, receiver in (
            (self.near, source, self.target),
            (self.far, self.target, source),
        ):
            if cut.holds(sender, receiver) and end.has_waiting_bytes():
                cut.touched.add(id(self))

    def abort(self) -> None:
        """Reset both ends."""
        if self._connecting is not None:
            self._connecting.cancel()
        self.near.abort()
        self.far.abort()
        self._links.forget(self)

    def on_lost(self, end: _End) -> None:
        """One end is closed: the other follows once its bytes are out."""
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
        other = end.other
        if other is not None and other.transport is not None and not other.transport.is_closing():
            other.transport.close()
        if all(e.transport is None or e.transport.is_closing() for e in (self.near, self.far)):
            self._links.forget(self)

    def _connect_unless_held(self) -> None:
        if self._connecting is None and not self.near.is_held and not self.far.is_held:
            self._connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: self.far, HOST, self._real_port)
        except (OSError, TimeoutError):
            self.abort()
            return
        self.review()


class _End(asyncio.Protocol):
    """One socket of a pair: what it receives, the other one sends."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.other: _End | None = None
        self.transport: asyncio.Transport | None = None
        self.is_held = False
        self.early: list[bytes] = []
        """Received before there was anybody to send it to: one read at most."""
        self._is_full = False
        self._is_reading = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self.transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=_BUFFER_BYTES_MAX)
        # uvloop begins to read after this call, whatever is paused in it.
        asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        assert self.transport is not None
        if self.transport.is_closing():
            return
        self._apply()
        if self is self._pair.near:
            places = [self.transport.get_extra_info(end) for end in ("peername", "sockname")]
            if None in places:
                # Who came has gone before this loop had its turn.
                self.transport.abort()
                return
            self._pair.on_accepted(*(place[1] for place in places))
        elif self.other is not None:
            for data in self.other.early:
                self.transport.write(data)
            self.other.early.clear()
            self.other._apply()

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        if self.other.transport is None or self.early:
            self.early.append(data)
        elif not self.other.transport.is_closing():
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pair.on_lost(self)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other._set_full(is_full=True)

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other._set_full(is_full=False)

    def hold(self, *, is_held: bool) -> None:
        """Whether what arrives here has to wait because of a cut."""
        self.is_held = is_held
        self._apply()

    def has_waiting_bytes(self) -> bool:
        """Whether the kernel holds bytes that were not taken, or a connection was not let on."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        if self.other is None or self.other.transport is None:
            return True
        sock = transport.get_extra_info("socket")
        with suppress(OSError, ValueError):
            raw = fcntl.ioctl(sock.fileno(), termios.FIONREAD, struct.pack("i", 0))
            return bool(struct.unpack("i", raw)[0])
        return False

    def abort(self) -> None:
        """Reset."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.abort()

    def _set_full(self, *, is_full: bool) -> None:
        self._is_full = is_full
        self._apply()

    def _apply(self) -> None:
        """Read if there is somebody to write to, no cut, and room."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        is_connected = self.other is not None and self.other.transport is not None
        wanted = is_connected and not self.is_held and not self._is_full
        if wanted != self._is_reading:
            self._is_reading = wanted
            (transport.resume_reading if wanted else transport.pause_reading)()


def list_owners(pids: Mapping[int, str]) -> dict[tuple[int, int], str]:
    """Local and remote port → the name of the process, among `pids`, that has this connection.

    One local port may have a connection to each of several remote ones, of other processes.
    """
    names = {inode: name for pid, name in pids.items() for inode in _list_inodes(pid)}
    sockets = list_sockets(ANY_PORT, *HELD)
    assert sockets is not None, "cuts need Linux's table of sockets"
    return {
        (one.local_port, one.remote_port): names[one.inode] for one in sockets if one.inode in names
    }


def _list_inodes(pid: int) -> Iterator[int]:
    """The sockets that a process has open."""
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for number in os.listdir(folder):
            with suppress(OSError):
                kind, _, inode = os.readlink(f"{folder}/{number}").partition(":")
                if kind == "socket":
                    yield int(inode.strip("[]"))


async def _is_served(port: int) -> bool:
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(HOST, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
