"""What became of pods: every change of them that the API server tells, by a watch.

Nothing between two samples is missed. Used by the tests beside this module.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.kubernetes.kubelet.installation import Installation
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread


class Moment(NamedTuple):
    """All pods after one change: name to whether it is there and Ready, and the change in words."""

    ready: dict[str, bool]
    text: str

    @property
    def away(self) -> set[str]:
        """Those that are not Ready, or not there."""
        return {name for name, is_ready in self.ready.items() if not is_ready}


@dataclass
class PodHistory:
    """Moments in order; complete once the block of `recording` has ended."""

    moments: list[Moment] = field(default_factory=list)

    def read(self, told: str) -> None:
        """Every event of a watch's output; the first ones say what there was."""
        decoder, at = json.JSONDecoder(), 0
        ready: dict[str, bool] = {}
        while at < len(told):
            try:
                event, end = decoder.raw_decode(told, at)
            except json.JSONDecodeError:
                break  # the last one was cut off
            name = event["object"]["metadata"]["name"]
            is_ready = event["type"] != "DELETED" and _is_ready(event["object"])
            if ready.get(name) is not is_ready:
                ready = {**ready, name: is_ready}
                self.moments.append(Moment(ready, _describe(event)))
            at = end
            while at < len(told) and told[at].isspace():
                at += 1


@contextmanager
def recording(release: Installation, role: str) -> Iterator[PodHistory]:
    """Record the pods of a role while the block runs."""
    history = PodHistory()
    count = len(release.pods(role))
    command = [
        "kubectl", f"--namespace={release.namespace}", "get", "pods", "--watch",
        "--output-watch-events", "--output=json",
        f"--selector=app.kubernetes.io/component={role}",
    ]  # fmt: skip
    told = release.kubelet.folder / f"{release.namespace}-{role}.events"
    with told.open("w") as output:
        watch = subprocess.Popen(
            command, stdout=output, stdin=subprocess.DEVNULL, env=release.kubelet.environment
        )
    try:
        wait_in_thread(
            lambda: told.read_text().count('"type":"ADDED"') >= count, HANG_S, "the first events"
        )
        yield history
    finally:
        watch.terminate()
        watch.wait(HANG_S)
    history.read(told.read_text())


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def _describe(event: dict[str, Any]) -> str:
    pod = event["object"]
    conditions = pod["status"].get("conditions", ())
    said = ", ".join(f"{one['type'].rpartition('/')[2]} {one['status']}" for one in conditions)
    is_leaving = " leaves" if "deletionTimestamp" in pod["metadata"] else ""
    return f"{event['type']} {pod['metadata']['name']}{is_leaving}: {said}"
