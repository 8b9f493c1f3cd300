"""Which sequencer to ask for a log: who owned it last, else whom the hash names.

Owners are learnt from answers and redirects; the rest is weighted rendezvous hashing over the live
sequencers, the same in every process. All of it is advice: a sequencer that does not own a log says
so, and seals, not routes, keep logs safe. Who is said to be away is asked by nobody, as long as
there is another. Bounded: both caches forget their oldest.

Called by `appends`, `creation` and `elsewhere`. Source: ARCHITECTURE.md "The way of one record",
docs/protocol/ownership.md "Whose is a log", docs/protocol/members.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from duramen.core.hashing import rank_nodes, weights_of
from duramen.ids import LogId

LOG_COUNT_MAX: Final = 100_000
"""Logs with a remembered owner, and with a remembered order of sequencers."""


class Target(NamedTuple):
    """A sequencer and where it is reached (no slash at the end)."""

    sequencer_id: str
    url: str


class Router:
    """Routes of all logs.

    Args:
        live: the sequencers of the roster now, id → fields with `data_url`.
        away: those that answer nobody, as sequencers say: a hint, and never all.
    """

    def __init__(
        self,
        live: Callable[[], Mapping[str, Mapping[str, Any]]],
        away: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._live = live
        self._away = away
        self._owners: dict[LogId, Target] = {}
        self._ranks: dict[str, tuple[Target, ...]] = {}
        self._learnt_count = 0

    def pick(self, key: str, log_id: LogId | None, avoid: Collection[str] = ()) -> Target | None:
        """The sequencer to ask next; None when all that are known are to be avoided.

        Args:
            key: `namespace/log`, or a namespace.
            log_id: whose owner is asked first, if it is known; None for what has no owner.
            avoid: urls that were tried in vain.
        """
        away = self._away()
        owner = None if log_id is None else self._owners.get(log_id)
        if owner is not None and owner.url not in avoid and owner.sequencer_id not in away:
            return owner
        for target in self.rank(key):
            if target.url not in avoid and target.sequencer_id not in away:
                return target
        return None

    def find_owner(self, log_id: LogId) -> Target | None:
        """Who answered for the log last, or was named as its owner, unless it is away."""
        owner = self._owners.get(log_id)
        return None if owner is None or owner.sequencer_id in self._away() else owner

    def list_away(self) -> Collection[str]:
        """The sequencers that are to be passed over."""
        return self._away()

    def rank(self, key: str) -> tuple[Target, ...]:
        """All live sequencers, the strongest claim on `key` first."""
        found = self._ranks.get(key)
        if found is None:
            live = self._live()
            order = rank_nodes(key, weights_of(live))
            found = tuple(
                Target(name, live[name]["data_url"]) for name in order if "data_url" in live[name]
            )
            _put_bounded(self._ranks, key, found)
        return found

    def learn(self, log_id: LogId, owner: Target) -> None:
        """`owner` answered for the log, or was named as its owner."""
        if self._owners.get(log_id) is not owner:
            self._learnt_count += 1
            _put_bounded(self._owners, log_id, owner)

    def forget(self, log_id: LogId, target: Target) -> None:
        """`target` is not there, or does not own the log (any more)."""
        if self._owners.get(log_id) == target:
            del self._owners[log_id]

    def on_roster(self) -> None:
        """The roster changed: orders are made again, and owners that left are forgotten.

        A process that is paused still takes connections, and nobody would ask the next one.
        """
        self._ranks.clear()
        urls = {node.get("data_url") for node in self._live().values()}
        self._owners = {log: owner for log, owner in self._owners.items() if owner.url in urls}

    def statistics(self) -> dict[str, int]:
        """Sizes now and changes since the start."""
        return {
            "sequencers": len(self._live()),
            "owners": len(self._owners),
            "ranks": len(self._ranks),
            "learnt": self._learnt_count,
        }


def _put_bounded(cache: dict[Any, Any], key: Any, value: Any) -> None:
    cache.pop(key, None)
    if len(cache) >= LOG_COUNT_MAX:
        del cache[next(iter(cache))]
    cache[key] = value
