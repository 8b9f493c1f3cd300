"""Who is behind a URL: by what nodes registered, then by what was heard, and by nothing else.

Source: docs/protocol/identity.md "The caller's header".
"""

from __future__ import annotations

from duramen.runtime.identity.names import Role
from duramen.runtime.security.peers import HEARD_COUNT_MAX, PeerNames
from tests.unit.identities import DOMAIN


def name_at(peers: PeerNames, url: str, role: Role = Role.SEQUENCER) -> str | None:
    found = peers.find(role, url)
    return None if found is None else found.name


def test_a_node_is_known_by_its_role_at_its_url() -> None:
    peers = PeerNames(DOMAIN)
    learn = peers.learn_role(Role.SEQUENCER)
    learn({"s-0": {"data_url": "https://a:1"}, "s-1": {"data_url": "https://b:1"}, "s-2": {}})
    assert name_at(peers, "https://a:1") == "s-0"
    assert name_at(peers, "https://b:1") == "s-1"
    assert name_at(peers, "https://c:1") is None
    # A bookie that claims a sequencer's place gets no calls of sequencers.
    peers.learn_role(Role.BOOKIE)({"evil": {"data_url": "https://a:1"}})
    assert name_at(peers, "https://a:1") == "s-0"
    assert name_at(peers, "https://a:1", Role.BOOKIE) == "evil"


def test_the_youngest_registration_of_a_place_counts() -> None:
    peers = PeerNames(DOMAIN)
    learn = peers.learn_role(Role.SEQUENCER)
    learn({"old": {"data_url": "https://a:1"}, "young": {"data_url": "https://a:1"}})
    assert name_at(peers, "https://a:1") == "young"


def test_what_is_registered_counts_before_what_was_heard() -> None:
    peers = PeerNames(DOMAIN)
    peers.hear(Role.SEQUENCER, "former", "https://a:1")
    assert name_at(peers, "https://a:1") == "former"
    peers.learn_role(Role.SEQUENCER)({"s-0": {"data_url": "https://a:1"}})
    peers.hear(Role.SEQUENCER, "former", "https://a:1")
    assert name_at(peers, "https://a:1") == "s-0"


def test_who_left_its_place_is_remembered_until_another_one_has_it() -> None:
    peers = PeerNames(DOMAIN)
    learn = peers.learn_role(Role.BOOKIE)
    learn({"b-0": {"data_url": "https://a:1"}})
    learn({})
    assert name_at(peers, "https://a:1", Role.BOOKIE) == "b-0"
    learn({"b-1": {"data_url": "https://a:1"}})
    assert name_at(peers, "https://a:1", Role.BOOKIE) == "b-1"


def test_what_can_be_no_name_is_nobody() -> None:
    peers = PeerNames(DOMAIN)
    peers.learn_role(Role.BOOKIE)({"b/0": {"data_url": "https://a:1"}, "b": {"data_url": 7}})
    peers.hear(Role.BOOKIE, "../b", "https://b:1")
    assert peers.statistics()["registered"] == peers.statistics()["heard"] == 0


def test_what_is_heard_is_bounded() -> None:
    peers = PeerNames(DOMAIN)
    for number in range(HEARD_COUNT_MAX + 1):
        peers.hear(Role.SEQUENCER, "s", f"https://a:{number}")
    assert peers.statistics()["heard"] == HEARD_COUNT_MAX
    assert name_at(peers, "https://a:0") is None
    assert name_at(peers, "https://a:1") == "s"
