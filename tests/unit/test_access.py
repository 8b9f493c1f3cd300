"""Rights by path: every path of a cluster, and who of all roles may do what there.

On a server: `tests/contract/test_secured_zookeeper`.
Source: docs/protocol/metadata-access.md "Rights".
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import pytest

from duramen.ids import BookieId, Epoch, Incarnation, LogId, Member
from duramen.runtime.identity.names import Role, make_identity
from duramen.runtime.stores.access import CREATE, DELETE, READ, WRITE, find_rights, is_of_process
from duramen.wire.metadata_json import Paths
from tests.unit.identities import DOMAIN

PATHS: Final = Paths("c1")
_SAMPLES: Final[dict[str, Any]] = {
    "namespace": "shop",
    "log": "orders",
    "log_id": 5,
    "epoch": 3,
    "bookie": "bookie-0",
    "ledger_id": 77,
    "member": Member(BookieId("bookie-0"), Incarnation("0" * 32)),
    "incarnation": "0" * 32,
    "sequence": 9,
    "token_id": "a1",
}
_LOG: Final = LogId(_SAMPLES["log_id"])
_OWED: Final = PATHS.owed(_SAMPLES["ledger_id"], _SAMPLES["member"])
_REGISTERED: Final = {
    PATHS.available: Role.BOOKIE,
    PATHS.sequencers: Role.SEQUENCER,
    PATHS.write_proxies: Role.WRITEPROXY,
    PATHS.read_proxies: Role.READPROXY,
}


def list_paths() -> list[str]:
    """Every path that `Paths` can spell, with one sample for each argument."""
    found = [value for value in vars(PATHS).values() if isinstance(value, str)]
    for name, method in inspect.getmembers(PATHS, inspect.ismethod):
        if not name.startswith("_"):
            arguments = list(inspect.signature(method).parameters)
            found.append(method(*(_SAMPLES[argument] for argument in arguments)))
    found += [f"{parent}/{role}-0" for parent, role in _REGISTERED.items()]
    found += [_OWED.rpartition("/")[0], PATHS.log(_LOG).rpartition("/")[0]]
    found += [f"{PATHS.segment(_LOG, Epoch(3))}/below", f"{PATHS.log(_LOG)}/below/3", f"{_OWED}/b"]
    return [*found, "/", "/duramen", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"]


def allowed(path: str, role: str, name: str) -> int:
    """What an identity may do there, as the server adds it up."""
    identity = str(make_identity(DOMAIN, role, name))
    permissions = 0
    for who, granted in find_rights(path, DOMAIN):
        if who == identity or (who.endswith("/*") and identity.startswith(who[:-1])):
            permissions |= granted
    return permissions


@pytest.mark.parametrize("path", list_paths())
def test_every_node_has_rights_that_name_this_cluster_alone(path: str) -> None:
    rights = find_rights(path, DOMAIN)
    assert rights and len({right.who for right in rights}) == len(rights)
    for who, permissions in rights:
        assert who.startswith(f"spiffe://{DOMAIN}/"), who
        assert permissions and not permissions & ~(READ | WRITE | CREATE | DELETE)
        # What only reads is named nowhere but in the one right to read.
        assert permissions == READ or not permissions & READ


_BOOKIE_PLACES: Final = {
    PATHS.bookies: CREATE,
    PATHS.bookie("bookie-0"): WRITE,
    PATHS.available: CREATE,
    f"{PATHS.available}/bookie-0": WRITE,
    PATHS.repair_queue: CREATE,
    PATHS.queued(77): WRITE,
    PATHS.repair_lost: CREATE,
}
_OTHERS: Final[dict[str, dict[str, int]]] = {
    "bookie": _BOOKIE_PLACES,
    "writeproxy": {PATHS.write_proxies: CREATE, f"{PATHS.write_proxies}/writeproxy-0": WRITE},
    "readproxy": {PATHS.read_proxies: CREATE, f"{PATHS.read_proxies}/readproxy-0": WRITE},
    "archive": {PATHS.segment(_SAMPLES["log_id"], _SAMPLES["epoch"]): WRITE},
    "corewriter": {
        PATHS.log(_LOG): CREATE | DELETE | WRITE,
        PATHS.segments(_LOG): CREATE,
        PATHS.segment(_LOG, _SAMPLES["epoch"]): WRITE,
        PATHS.repair_owed: CREATE,
        _OWED.rpartition("/")[0]: CREATE,
        _OWED: WRITE,
    },
    "corereader": {},
    "zookeeper": {},
}


@pytest.mark.parametrize("path", list_paths())
@pytest.mark.parametrize("role", list(_OTHERS))
def test_who_is_no_sequencer_writes_its_own_places_and_no_others(role: str, path: str) -> None:
    expected = _OTHERS[role].get(path, 0)
    expected |= 0 if path.startswith("/zookeeper") else READ
    assert allowed(path, role, f"{role}-0") == expected
    if path.endswith(f"/{role}-0"):
        assert allowed(path, role, f"{role}-1") == READ, "it is named after another one"


@pytest.mark.parametrize("path", list_paths())
def test_a_sequencer_changes_the_tree_but_not_what_others_say_of_themselves(path: str) -> None:
    found = allowed(path, "sequencer", "sequencer-0")
    if path in ("/", "/duramen") or path.startswith("/zookeeper"):
        assert not found & (WRITE | CREATE | DELETE)
    elif path in _REGISTERED:
        expected = CREATE | DELETE if _REGISTERED[path] is Role.SEQUENCER else 0
        assert found & ~READ == expected
    elif any(path.startswith(f"{parent}/") for parent in _REGISTERED):
        assert bool(found & WRITE) == path.endswith("/sequencer-0")
    elif path == PATHS.bookies:
        assert found & ~READ == DELETE
    else:
        assert found & (WRITE | CREATE)


def test_what_no_version_knows_yet_is_the_sequencers() -> None:
    for path in ("/elsewhere", "/duramen/c1/later", "/duramen/c1/later/below"):
        assert allowed(path, "sequencer", "sequencer-0") == READ | WRITE | CREATE | DELETE
        assert allowed(path, "bookie", "later") == READ


@pytest.mark.parametrize(
    ("path", "is_so"),
    [
        (f"{PATHS.available}/bookie-1", True), (f"{PATHS.sequencers}/s", True),
        (f"{PATHS.write_proxies}/w", True), (f"{PATHS.read_proxies}/r", True),
        (PATHS.auditor, True), (PATHS.owner(LogId(5)), True),
        (PATHS.available, False), (PATHS.bookie("b"), False), (PATHS.log(LogId(5)), False),
        (PATHS.name("shop", "owner"), False), (PATHS.namespace("auditor"), False),
        ("/zookeeper/available/x", False), ("/", False),
    ],
)  # fmt: skip
def test_what_lives_no_longer_than_a_process(path: str, is_so: bool) -> None:
    assert is_of_process(path) is is_so
