"""Which sequencer is the auditor: whoever made the ephemeral node `auditor`.

Every sequencer tries to make it, and watches it while another has it. Who has it holds the office
until its session is in doubt; then it stops at once, before the node is gone (01-protocol section
2). Two auditors at one time would waste work and harm nothing: all that they change they change by
compare-and-set.

Called by `auditor`; the node is read by `operations` and by write proxies.
Source: 01-protocol section 9; docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from duramen.runtime.metadata_store import (
    Conflict,
    MetadataError,
    MetadataStore,
    OutcomeUnknown,
    SessionState,
)
from duramen.wire.metadata_json import MetadataJsonError, read_node, spell_node

_LOG = logging.getLogger(__name__)
_RETRY_S: Final = 0.3


class Election:
    """One candidate.

    Args:
        fields: of the node: `sequencer`, `admin_url`.
        on_change: called with every change of office, at once.
    """

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        fields: Mapping[str, Any],
        on_change: Callable[[bool], None],
    ) -> None:
        self.is_held = False
        self.holder: dict[str, Any] = {}
        """The node as it was seen last; empty while there is none."""
        self._store = store
        self._path = path
        self._fields = dict(fields)
        self._on_change = on_change
        self._dirty = asyncio.Event()
        self._is_armed = False
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        store.on_session(self._on_session)

    def start(self) -> None:
        """Stand for election, for as long as the process lives."""
        self._dirty.set()
        self._task = asyncio.create_task(self._stand_for_ever())

    async def stop(self) -> None:
        """Leave the office; the node goes at once, so that another may take over."""
        self._is_stopping = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        was_held = self.is_held
        self._hold(is_held=False)
        if was_held:
            with contextlib.suppress(MetadataError):
                stored = await self._store.get(self._path)
                if stored is not None and stored.ephemeral_session == self._store.session_id:
                    await self._store.delete(self._path, version=stored.version)

    def _on_session(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED:
            self._hold(is_held=False)
        self._dirty.set()

    def _on_node(self) -> None:
        self._is_armed = False
        self._dirty.set()

    async def _stand_for_ever(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            if self._store.session is not SessionState.CONNECTED:
                continue
            try:
                await self._look()
            except MetadataError as error:
                _LOG.info("election of the auditor: %s", error)
                self._dirty.set()
                await asyncio.sleep(_RETRY_S)

    async def _look(self) -> None:
        watch = None if self._is_armed else self._on_node
        stored = await self._store.get(self._path, watch)
        self._is_armed = True
        if stored is None:
            with contextlib.suppress(Conflict, OutcomeUnknown):
                await self._store.create(self._path, spell_node(self._fields), ephemeral=True)
            self._dirty.set()  # the node says who has it, ourselves as well
            return
        try:
            self.holder = read_node(stored.data)
        except MetadataJsonError as error:
            _LOG.error("%s is not understood: %s", self._path, error)
            self.holder = {}
        session_id = self._store.session_id
        is_ours = stored.ephemeral_session == session_id and session_id != 0
        is_connected = self._store.session is SessionState.CONNECTED
        self._hold(is_held=is_ours and is_connected and not self._is_stopping)

    def _hold(self, *, is_held: bool) -> None:
        if is_held != self.is_held:
            _LOG.info("this sequencer is %s the auditor", "now" if is_held else "no longer")
            self.is_held = is_held
            self._on_change(is_held)
