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
    """All pods after one change: who was stopped and is not back, and the change in words.

    Stopped is a pod from the moment at which it is to be deleted until one of its name is Ready.
    One that is merely not Ready was stopped by nobody: it crashed, its probe was not answered in
    time, or its node was silent for forty seconds, as where processors are busy.
    """

    stopped: frozenset[str]
    text: str


@dataclass
class PodHistory:
    """Moments in order; complete once the block of `recording` has ended."""

    moments: list[Moment] = field(default_factory=list)

    def read(self, told: str) -> None:
        """Every event of a watch's output; the first ones say what there was."""
        decoder, at = json.JSONDecoder(), 0
        before: dict[str, tuple[bool, bool]] = {}
        stopped: frozenset[str] = frozenset()
        while at < len(told):
            try:
                event, end = decoder.raw_decode(told, at)
            except json.JSONDecodeError:
                break  # the last one was cut off
            name = event["object"]["metadata"]["name"]
            is_leaving = _is_leaving(event)
            is_ready = not is_leaving and _is_ready(event["object"])
            if is_leaving:
                stopped |= {name}
            elif is_ready:
                stopped -= {name}
            if before.get(name) != (is_ready, name in stopped):
                before[name] = (is_ready, name in stopped)
                self.moments.append(Moment(stopped, _describe(event)))
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


def _is_leaving(event: dict[str, Any]) -> bool:
    return event["type"] == "DELETED" or "deletionTimestamp" in event["object"]["metadata"]


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True"


def _describe(event: dict[str, Any]) -> str:
    pod = event["object"]
    conditions = pod["status"].get("conditions", ())
    said = ", ".join(f"{one['type'].rpartition('/')[2]} {one['status']}" for one in conditions)
    leaves = " leaves" if _is_leaving(event) else ""
    return f"{event['type']} {pod['metadata']['name']}{leaves}: {said}"
