"""Notices a watch that has died without an error: lists show what it should have told, and did not.

A connection can stay open and silent for ever; then nothing wakes the workers but their own clock.
Every pass lists all objects anyway, so it compares: an object in a version that no event has
brought, and about which no event came since, makes its kind late. Late for longer than a grace, and
the process calls itself dead; Kubernetes starts it anew. Called by handlers, workers and health.
"""

from collections.abc import Callable, Iterable

from duramen_operator.plan.observed import Json
from duramen_operator.serving import metrics

GRACE_S = 90.0
"""Longer than kopf's own inactivity limit (70 s) and its reconnect, shorter than anybody's
patience."""

LateKey = tuple[str, str, str]
"""Kind, scope of the list, uid."""


class Watches:
    """What events and lists have shown of each object."""

    def __init__(self, watched: Iterable[str], clock_s: Callable[[], float]) -> None:
        self._watched = frozenset(watched)
        self._clock_s = clock_s
        self._seen: dict[tuple[str, str], str] = {}
        self._late_since_s: dict[LateKey, float] = {}

    def on_event(self, kind: str, item: Json, *, is_deleted: bool) -> None:
        """An event came about an object."""
        key = (kind, str(item["metadata"].get("uid")))
        metrics.WATCH_EVENTS.labels(kind).inc()
        for late in [k for k in self._late_since_s if (k[0], k[2]) == key]:
            del self._late_since_s[late]
        if is_deleted:
            self._seen.pop(key, None)
        else:
            self._seen[key] = str(item["metadata"].get("resourceVersion"))

    def on_list(self, kind: str, items: Iterable[Json], scope: str = "") -> None:
        """A list shows these objects of a kind; it is complete within its scope (a cluster)."""
        if kind not in self._watched:
            return
        listed = set()
        for item in items:
            key = (kind, scope, str(item["metadata"].get("uid")))
            listed.add(key)
            version = str(item["metadata"].get("resourceVersion"))
            if self._seen.get((kind, key[2])) == version:
                self._late_since_s.pop(key, None)
            else:
                self._late_since_s.setdefault(key, self._clock_s())
        gone = [k for k in self._late_since_s if k[:2] == (kind, scope) and k not in listed]
        for key in gone:
            del self._late_since_s[key]
        metrics.LATE_WATCHES.set(len(self.find_late()))

    def find_late(self) -> tuple[str, ...]:
        """Kinds whose watch is silent for longer than the grace."""
        now_s = self._clock_s()
        late = {k for (k, _, _), since in self._late_since_s.items() if now_s - since > GRACE_S}
        return tuple(sorted(late))

    def statistics(self) -> dict[str, int]:
        """How much is held: one entry for each object of the namespace that concerns us."""
        return {"seen": len(self._seen), "late": len(self._late_since_s)}
