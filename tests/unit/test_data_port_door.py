"""Who is let in at a data port: each role at each path, and everybody whose header is no good.

The table stands here once more, as the page has it. Source: docs/protocol/identity.md "Who may call
what inside".
"""

from __future__ import annotations

import datetime as dt
from typing import Final

import pytest

from duramen.core.members.messages import MemberQuestion
from duramen.runtime.identity.callers import FIRST_COUNT_PER_LEAF, Callers, OwnHeaders
from duramen.runtime.identity.names import Identity, Role, make_identity
from duramen.runtime.members.places import speaks_for_itself
from duramen.runtime.security.door import Door, NotAdmittedError
from duramen.runtime.security.permitted_roles import (
    BOOKIE_PATHS,
    SEQUENCER_PATHS,
    find_control_roles,
)
from tests.unit.callers import BUNDLE, RECEIVER, after, hold
from tests.unit.identities import DOMAIN, NOW

READERS: Final = {"sequencer", "readproxy", "archive", "operator"}
MAY: Final = {
    "/b/add": {"sequencer", "corewriter", "operator"},
    "/b/seal": {"sequencer", "corewriter"},
    "/b/lac": {"sequencer", "readproxy", "corewriter", "corereader"},
    "/b/read": READERS | {"bookie", "corewriter", "corereader"},
    "/b/inventory": READERS,
    "/b/pull": {"sequencer"},
    "/b/members": {"sequencer"},
    "/s/append": {"writeproxy"},
    "/s/lac": {"readproxy"},
    "/s/control": {"sequencer", "writeproxy", "readproxy", "corewriter", "corereader"},
    "/s/members": {"sequencer", "writeproxy", "bookie"},
}
PATHS: Final = {**BOOKIE_PATHS, **SEQUENCER_PATHS}


def name_to(receiver: Identity, role: Role = Role.SEQUENCER, at: dt.datetime = NOW) -> str:
    return OwnHeaders(hold(make_identity(DOMAIN, role, "node-0"))).give(receiver, at)


def open_door() -> Door:
    return Door(Callers(RECEIVER, BUNDLE), PATHS)


def refuse(door: Door, path: str, headers: list[str], now: dt.datetime = NOW) -> NotAdmittedError:
    with pytest.raises(NotAdmittedError) as caught:
        door.admit(path, headers, now, "::1")
    return caught.value


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("path", [*MAY, "/b/unheard", "/", ""])
def test_each_role_is_let_in_where_the_table_has_it_and_nowhere_else(path: str, role: Role) -> None:
    header = name_to(RECEIVER, role)
    if role in MAY.get(path, set()):
        caller = open_door().admit(path, [header], NOW, "::1")
        assert caller is not None and caller.role is role
    else:
        assert refuse(open_door(), path, [header]).refusal.code == "forbidden"


def test_no_path_is_without_its_row() -> None:
    assert set(PATHS) == set(MAY)


@pytest.mark.parametrize("operation", ["create_log", "fence", "reconfigure", "suspend", "unheard"])
def test_what_clients_ask_for_comes_by_a_write_proxy(operation: str) -> None:
    assert set(find_control_roles(operation)) == {"writeproxy"}


def test_what_peers_and_readers_ask_a_sequencer_for() -> None:
    for operation in ("take", "owned", "hand_over", "config_changed", "report_state", "roll"):
        assert set(find_control_roles(operation)) == {"sequencer", "writeproxy"}
    readers = {"readproxy", "corewriter", "corereader"}
    assert set(find_control_roles("report_tail")) == {"sequencer", "writeproxy"} | readers


def test_nobody_is_let_in_without_one_header_that_means_this_node() -> None:
    good, door = name_to(RECEIVER), open_door()
    other = name_to(make_identity(DOMAIN, "bookie", "bookie-1"))
    for headers in ([], [good, good], [good, other], [other], ["x"], [""], [good + "\n"]):
        refused = refuse(door, "/b/read", headers)
        assert refused.refusal.code == "unauthenticated"
        assert dict(refused.headers) == {"www-authenticate": "Duramen-Identity"}
    caller = door.admit("/b/read", [good], NOW, "::1")
    assert caller is not None and caller.name == "node-0"


def test_who_is_late_learns_the_time_and_nobody_else_does() -> None:
    now = after(10_000)
    refused = refuse(open_door(), "/b/read", [name_to(RECEIVER)], now)
    assert dict(refused.headers)["duramen-time"] == f"{now.timestamp():.0f}"


def test_who_makes_header_after_header_is_told_to_wait() -> None:
    door, held = open_door(), OwnHeaders(hold())
    for second in range(FIRST_COUNT_PER_LEAF):
        header = held.give(RECEIVER, after(second / 1e3))
        door.admit("/b/read", [header], NOW, "::1")
        assert held.forget(RECEIVER, header)
    refused = refuse(door, "/b/read", [held.give(RECEIVER, NOW)])
    assert refused.refusal.code == "rate_limited"
    assert dict(refused.headers) == {"duramen-retry-after-ms": "1000"}


@pytest.mark.parametrize(
    ("role", "sender", "is_observer", "is_heard"),
    [
        ("sequencer", "node-0", False, True),
        ("sequencer", "node-1", False, False),
        ("sequencer", "node-0", True, False),
        ("bookie", "bookie/node-0", True, True),
        ("bookie", "bookie/node-0", False, False),
        ("bookie", "node-0", True, False),
        ("writeproxy", "node-0", True, True),
        ("writeproxy", "node-0", False, False),
        ("writeproxy", "node-1", True, False),
    ],
)
def test_a_member_speaks_for_itself_and_others_observe(
    role: str, sender: str, is_observer: bool, is_heard: bool
) -> None:
    question = MemberQuestion(sender, 0, is_observer=is_observer)
    assert speaks_for_itself(question, make_identity(DOMAIN, role, "node-0")) is is_heard
