"""Which sequencer is the auditor: whoever made the ephemeral node `auditor`.

Every sequencer tries to make it, and watches it while another has it. Who has it is the leader
until its session is in doubt; then it stops at once, before the node is gone
(docs/protocol/repair.md "Who audits"). Two auditors at one time would waste work and harm nothing:
all that they change they change by compare-and-set.

Called by `service`, which tells the auditor; the node is read by `operations` and write proxies.
Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from duramen.runtime.registry import Follower
from duramen.runtime.stores.metadata_store import (
    Conflict,
    MetadataError,
    MetadataStore,
    OutcomeUnknown,
    SessionState,
)
from duramen.wire.metadata_json import MetadataJsonError, encode_node, read_node

_LOG = logging.getLogger(__name__)


class Election:
    """One candidate.

    Args:
        fields: of the node: `sequencer`, `admin_url`.
        on_change: called with every change of leadership, at once.
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
        self._follower = Follower(store, "election of the auditor", self._look)
        store.on_session(self._on_session)

    async def start(self) -> None:
        """Stand for election, for as long as the process lives; returns after the first look."""
        await self._follower.start()

    async def stop(self) -> None:
        """Give up leadership; the node goes at once, so that another may take over."""
        await self._follower.stop()
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

    async def _look(self) -> None:
        stored = await self._follower.get(self._path)
        if stored is None:
            with contextlib.suppress(Conflict, OutcomeUnknown):
                await self._store.create(self._path, encode_node(self._fields), ephemeral=True)
            self._follower.look_again()  # the node says who has it, ourselves as well
            return
        try:
            self.holder = read_node(stored.data)
        except MetadataJsonError as error:
            _LOG.error("%s is not understood: %s", self._path, error)
            self.holder = {}
        session_id = self._store.session_id
        is_ours = stored.ephemeral_session == session_id and session_id != 0
        is_connected = self._store.session is SessionState.CONNECTED
        self._hold(is_held=is_ours and is_connected)

    def _hold(self, *, is_held: bool) -> None:
        if is_held != self.is_held:
            _LOG.info("this sequencer is %s the auditor", "now" if is_held else "no longer")
            self.is_held = is_held
            self._on_change(is_held)
