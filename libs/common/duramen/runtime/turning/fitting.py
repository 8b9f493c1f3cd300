"""Whether a process may be started beside those that are registered: each has to reach each.

Looked at before a process registers, and once more when it has: of two that start at the same time
one sees the other. Who was killed stays registered until its session ends, so what does not fit is
waited for that long.

Called by each service at its start, and by `duramen access`.
Source: docs/protocol/turning-on.md "Who may be started".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from duramen.runtime.role import ServiceOptions, StartRefusedError
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore, Rejected
from duramen.runtime.turning.addresses import has_plain, has_tls
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_node

_LOG: Final = logging.getLogger(__name__)
_LOOK_S: Final = 0.3
_SPARE_S: Final = 2.0
_NAMED_MAX: Final = 5

Fits = Callable[[Mapping[str, Any]], bool]

_OF_SECURITY: Final[Mapping[str, tuple[Fits, str]]] = {
    "on": (has_tls, "no port with TLS: start each with --security migrate before"),
    "none": (has_plain, "no plain port: start each with --security migrate before"),
}


class FitCheck:
    """Asked twice by one process.

    Args:
        store: started.
    """

    def __init__(self, store: MetadataStore, options: ServiceOptions) -> None:
        self._store = store
        self._paths = Paths(options.cluster)
        self._options = options
        self._own_place = (options.role, options.node_id)

    async def wait_fitting(self) -> None:
        """Before it registers: until all that are registered fit.

        Raises:
            StartRefusedError: some do not, and are there for longer than a session.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._options.session_timeout_s + _SPARE_S
        while (misfits := await self._find()) and loop.time() < deadline_s:
            _LOG.info("waiting for %s to go", ", ".join(misfits))
            await asyncio.sleep(_LOOK_S)
        self._refuse(misfits)

    async def check_registered(self) -> None:
        """When it has registered.

        Raises:
            StartRefusedError: one that does not fit has registered meanwhile.
        """
        self._refuse(await self._find())

    async def _find(self) -> list[str]:
        if self._options.security not in _OF_SECURITY:
            return []
        fits, _ = _OF_SECURITY[self._options.security]
        while True:
            try:
                return await find_misfits(self._store, self._paths, fits, but=self._own_place)
            except Rejected as error:
                raise StartRefusedError(f"ZooKeeper does not say who is there: {error}") from None
            except MetadataError as error:
                _LOG.warning("waiting for ZooKeeper: %s", error)
                await asyncio.sleep(_LOOK_S)

    def _refuse(self, misfits: list[str]) -> None:
        if misfits:
            _, lack = _OF_SECURITY[self._options.security]
            raise StartRefusedError(
                f"--security {self._options.security}: {name_nodes(misfits)} registered with {lack}"
            )


def find_parents(paths: Paths) -> dict[str, str]:
    """The nodes below which processes register, by role."""
    return {
        "bookie": paths.available,
        "sequencer": paths.sequencers,
        "writeproxy": paths.write_proxies,
        "readproxy": paths.read_proxies,
    }


async def find_misfits(
    store: MetadataStore, paths: Paths, fits: Fits, *, but: tuple[str, str] | None = None
) -> list[str]:
    """The nodes that are registered and do not fit, by name.

    Args:
        but: role and name of one that is passed over.

    Raises:
        MetadataError: who is there is not known.
    """
    misfits = []
    for role, parent in find_parents(paths).items():
        await store.sync(parent)
        for name in await store.children(parent) or ():
            if (role, name) == but:
                continue
            try:
                found = await store.get(f"{parent}/{name}")
                fields = {} if found is None else read_node(found.data)
            except (Rejected, MetadataJsonError) as error:
                # Whoever lives can be read: what it says of itself nobody hears in any case.
                _LOG.warning("%s/%s is passed over: %s", parent, name, error)
                continue
            if fields and not fits(fields):
                misfits.append(name)
    return sorted(misfits)


def name_nodes(names: list[str]) -> str:
    """In a sentence, with its verb."""
    more = "" if len(names) <= _NAMED_MAX else f" and {len(names) - _NAMED_MAX} more"
    verb = "is" if len(names) == 1 else "are"
    return f"{', '.join(names[:_NAMED_MAX])}{more} {verb}"
