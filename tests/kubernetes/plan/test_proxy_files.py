"""What proxies of a secured cluster are given: a folder for records, issuers, and nobody else is.

Source: docs/kubernetes/security.md "Records and issuers".
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.plan.world import World, make_cluster

SECURED: dict[str, Any] = {"security": "on", "acceptAnybody": False}
PROXIES = ("main-writeproxy", "main-readproxy")


def find_pods(**spec: Any) -> dict[str, Any]:
    """The pod of each workload, by its name."""
    world = World(make_cluster(**spec))
    world.converge()
    return {
        name: world.find(kind, name)["spec"]["template"]["spec"]
        for kind in ("StatefulSet", "Deployment")
        for name in world.names(kind)
    }


def read_flag(pod: dict[str, Any], flag: str) -> str | None:
    """What stands behind a flag; "" behind the last one, None where it is not told."""
    (container,) = pod["containers"]
    told = container["args"]
    return (told[told.index(flag) + 1 :] or [""])[0] if flag in told else None


def find_volume(pod: dict[str, Any], path: str) -> dict[str, Any] | None:
    (container,) = pod["containers"]
    found = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == path]
    named = {volume["name"]: volume for volume in pod["volumes"]}
    return named[found[0]] if found else None


def test_proxies_have_a_folder_for_records_and_refuse_changes_only_where_that_is_asked() -> None:
    for require in (False, True):
        pods = find_pods(**SECURED, audit={"require": require})
        for name, pod in pods.items():
            is_proxy = name in PROXIES
            assert (read_flag(pod, "--audit-require") is not None) is (is_proxy and require), name
            if is_proxy:
                folder = read_flag(pod, "--data-dir")
                assert folder == "/var/lib/duramen"
                volume = find_volume(pod, folder)
                assert volume is not None and volume["emptyDir"] == {"sizeLimit": "64Mi"}


def test_issuers_are_mounted_from_a_config_map() -> None:
    pods = find_pods(**SECURED, issuers={"name": "who"})
    for name in PROXIES:
        assert read_flag(pods[name], "--issuers") == "/etc/duramen/issuers/issuers.json"
        volume = find_volume(pods[name], "/etc/duramen/issuers")
        assert volume is not None and volume["configMap"] == {"name": "who"}
    assert read_flag(pods["main-sequencer"], "--issuers") is None
    assert read_flag(find_pods(**SECURED)[PROXIES[0]], "--issuers") is None


@pytest.mark.parametrize("name", PROXIES)
def test_a_cluster_that_asks_nobody_records_nothing(name: str) -> None:
    pod = find_pods()[name]
    assert read_flag(pod, "--data-dir") is None
    assert read_flag(pod, "--issuers") is None
    assert [volume["name"] for volume in pod["volumes"]] == ["tmp"]
