"""A history of pods tells who was stopped, and is not misled by who is merely not Ready.

Kubernetes says of all pods of a silent node that they are not Ready; nobody stopped them. Events
are as `kubectl get --watch --output-watch-events` prints them.
"""

from __future__ import annotations

import json

from tests.kubernetes.kubelet.pod_history import PodHistory


def _tell(kind: str, name: str, *, is_ready: bool, is_leaving: bool = False) -> str:
    metadata = {"name": name, **({"deletionTimestamp": "now"} if is_leaving else {})}
    conditions = [{"type": "Ready", "status": str(is_ready)}]
    pod = {"metadata": metadata, "status": {"conditions": conditions}}
    return json.dumps({"type": kind, "object": pod}, indent=1)


def _read(*events: str) -> list[set[str]]:
    history = PodHistory()
    history.read("\n".join(events))
    return [set(moment.stopped) for moment in history.moments]


ALL_READY = [_tell("ADDED", name, is_ready=True) for name in ("a-0", "b-0")]


def test_a_stopped_pod_is_back_when_one_of_its_name_is_ready() -> None:
    told = _read(
        *ALL_READY,
        _tell("MODIFIED", "a-0", is_ready=True, is_leaving=True),
        _tell("DELETED", "a-0", is_ready=False, is_leaving=True),
        _tell("ADDED", "a-0", is_ready=False),
        _tell("MODIFIED", "a-0", is_ready=True),
    )
    assert told == [set(), set(), {"a-0"}, set()]


def test_pods_of_silent_nodes_were_stopped_by_nobody() -> None:
    told = _read(
        *ALL_READY,
        _tell("MODIFIED", "a-0", is_ready=False),
        _tell("MODIFIED", "b-0", is_ready=False),
        _tell("MODIFIED", "a-0", is_ready=True),
    )
    assert told == [set()] * 5


def test_two_that_are_stopped_at_once_are_told() -> None:
    told = _read(
        *ALL_READY,
        _tell("MODIFIED", "a-0", is_ready=True, is_leaving=True),
        _tell("ADDED", "a-0", is_ready=False),
        _tell("MODIFIED", "b-0", is_ready=True, is_leaving=True),
        _tell("MODIFIED", "b-0", is_ready=False, is_leaving=True)[:20],
    )
    assert told[-1] == {"a-0", "b-0"}
