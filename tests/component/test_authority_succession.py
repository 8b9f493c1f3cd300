"""One CA takes another one's place: the steps, the ways back, and what each step refuses.

On disk, by the clock that a test gives. Calls while this happens: `test_secured_calls`, and whole
clusters: `tests/process/test_identities`. Source: docs/protocol/identity.md "Replacing the CA".
"""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Final

import pytest

from duramen.cli.main import main
from duramen.runtime.identity import generations
from duramen.runtime.identity.authority import KeptAuthority, begin_authority, open_authority
from duramen.runtime.identity.certificates import (
    LEAF_LIFE,
    CertificateRefusedError,
    find_issuer,
    judge_leaf,
    list_anchors,
)
from duramen.runtime.identity.folder import (
    HeldIdentity,
    encode_key,
    read_folder,
    read_former_places,
    write_folder,
)
from duramen.runtime.identity.names import IdentityError
from tests.unit.identities import BOOKIE, DOMAIN, NOW

DAY: Final = dt.timedelta(days=1)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy is under way here."""
    monkeypatch.setattr(generations, "_SETTLING_S", 0.0)


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    begin_authority(tmp_path / "ca", DOMAIN, NOW)
    return tmp_path / "ca"


def issue(authority: KeptAuthority, now: dt.datetime = NOW) -> HeldIdentity:
    return authority.issue(BOOKIE, now)


def is_valid(held: HeldIdentity, authority: KeptAuthority, now: dt.datetime) -> bool:
    """Whether who has the present bundle takes a certificate."""
    try:
        judge_leaf(held.leaf, authority.bundle, DOMAIN, now)
    except CertificateRefusedError:
        return False
    return True


def test_every_certificate_is_valid_for_everybody_at_each_step(ca: Path) -> None:
    held: list[HeldIdentity] = []
    with open_authority(ca, NOW) as authority:
        first = list_anchors(authority.bundle)[0]
        held.append(issue(authority))
        authority.announce(NOW)
        second = list_anchors(authority.bundle)[1]
    with open_authority(ca, NOW) as authority:
        held.append(issue(authority))
        assert [find_issuer(one.leaf, authority.bundle) for one in held] == [first, first]
        with pytest.raises(IdentityError, match=r"less than a day ago.*--now"):
            authority.switch(NOW + DAY - dt.timedelta(seconds=1))
        authority.switch(NOW + DAY)
    with open_authority(ca, NOW + DAY) as authority:
        held.append(issue(authority, NOW + DAY))
        assert find_issuer(held[-1].leaf, authority.bundle) == second
        assert [is_valid(one, authority, NOW + DAY) for one in held] == [True] * 3
        with pytest.raises(IdentityError, match=r"2 certificates .*bookie-0 until.*--now"):
            authority.retire(NOW + DAY)
    late = NOW + LEAF_LIFE
    with open_authority(ca, late) as authority:
        authority.retire(late)
        assert list_anchors(authority.bundle) == [second]
        assert [is_valid(one, authority, NOW + DAY) for one in held] == [False, False, True]
        assert [one.serial for one in authority.list_issued()] == [held[-1].leaf.serial_number]


def test_each_step_has_a_way_back(ca: Path) -> None:
    with open_authority(ca, NOW) as authority:
        (first,) = list_anchors(authority.bundle)
        authority.announce(NOW)
        authority.retire(NOW)
        assert list_anchors(authority.bundle) == [first], "what was announced issued nothing"
        authority.announce(NOW + dt.timedelta(seconds=1))
        authority.switch(NOW, is_known_everywhere=True)
        between = issue(authority)
        authority.switch(NOW)
        assert find_issuer(issue(authority).leaf, authority.bundle) == first
        assert is_valid(between, authority, NOW)
        with pytest.raises(IdentityError, match="1 certificates"):
            authority.retire(NOW)
        authority.revoke([between.leaf.serial_number], NOW)
        authority.retire(NOW)
        assert list_anchors(authority.bundle) == [first]


def test_either_ca_revokes_what_it_issued_and_both_what_nobody_knows(ca: Path) -> None:
    with open_authority(ca, NOW) as authority:
        old = issue(authority)
        authority.announce(NOW)
        authority.switch(NOW, is_known_everywhere=True)
        new = issue(authority)
        authority.revoke([old.leaf.serial_number, new.leaf.serial_number, 7], NOW)
    with open_authority(ca, NOW) as authority:
        listed = [{row.serial_number for row in one} for one in authority.bundle.lists]
        assert listed == [{new.leaf.serial_number, 7}, {old.leaf.serial_number, 7}]
        assert not is_valid(old, authority, NOW) and not is_valid(new, authority, NOW)
        assert set(authority.list_revoked()) == {*listed[0], *listed[1]}


def test_who_has_a_certificate_of_the_retired_one_is_named_unless_that_is_wanted(ca: Path) -> None:
    with open_authority(ca, NOW) as authority:
        stolen = issue(authority)
        authority.announce(NOW)
        authority.switch(NOW, is_known_everywhere=True)
        authority.retire(NOW, is_wanted_now=True)
        assert not is_valid(stolen, authority, NOW)


def test_steps_that_make_no_sense_are_refused(ca: Path) -> None:
    with open_authority(ca, NOW) as authority:
        for step in (authority.switch, authority.retire):
            with pytest.raises(IdentityError, match="ca announce"):
                step(NOW)
        authority.announce(NOW)
        with pytest.raises(IdentityError, match="two CAs already"):
            authority.announce(NOW)


def test_a_second_key_that_is_not_its_cas_is_not_used(ca: Path) -> None:
    with open_authority(ca, NOW) as authority:
        authority.announce(NOW)
        strange = encode_key(issue(authority).key)
    (ca / "..data" / "other.key").write_bytes(strange)
    with (
        pytest.raises(IdentityError, match=r"other\.key is not the key of the second"),
        open_authority(ca, NOW),
    ):
        pass
    begin_authority(ca, DOMAIN, NOW, is_replacing=True)
    with open_authority(ca, NOW) as authority:
        assert len(authority.bundle.anchors) == 1, "what was lost is replaced whole"


def test_the_commands_lead_a_folder_from_one_ca_to_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ca, node = str(tmp_path / "ca"), tmp_path / "node"
    line = ["ca", "issue", ca, "bookie", "bookie-0", "--out", str(node)]
    assert main(["ca", "init", ca, "--uuid", DOMAIN]) == 0
    assert main(line) == 0
    assert main(["ca", "announce", ca, str(node), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert main(["ca", "switch", ca]) == 1
    assert main(["ca", "switch", ca, "--now"]) == 0
    assert main(["ca", "retire", ca, str(node)]) == 1, "the node has one of the former's"
    assert main(line) == 0
    assert main(["ca", "retire", ca, str(node)]) == 1, "so it has, for all that is known here"
    capsys.readouterr()
    assert main(["ca", "retire", ca, str(node), "--now"]) == 0
    assert main(["ca", "show", str(node), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["anchors"] == [told["anchors"][1]] and shown["issuer"] == told["anchors"][1]
    assert main(["ca", "retire", ca]) == 1


def test_a_folder_that_was_away_is_a_stranger_and_is_helped_by_hand(
    ca: Path, tmp_path: Path
) -> None:
    node = tmp_path / "node"
    with open_authority(ca, NOW) as authority:
        write_folder(node, issue(authority))
        authority.announce(NOW)
        authority.switch(NOW, is_known_everywhere=True)
        authority.retire(NOW, is_wanted_now=True)
        fresh = issue(authority)
        assert not is_valid(read_folder(node, NOW), authority, NOW)
        write_folder(node, fresh)
        assert is_valid(read_folder(node, NOW), authority, NOW)


def test_a_certificate_that_is_renewed_by_hand_keeps_its_hosts(tmp_path: Path) -> None:
    ca, node = str(tmp_path / "ca"), tmp_path / "node"
    line = ["ca", "issue", ca, "bookie", "bookie-0", "--out", str(node)]
    assert main(["ca", "init", ca, "--uuid", DOMAIN]) == 0
    assert main([*line, "--called", "bookie-0", "--called", "10.0.0.7"]) == 0
    hosts = read_former_places(node, BOOKIE)
    assert (hosts.names, [str(one) for one in hosts.addresses]) == (("bookie-0",), ["10.0.0.7"])
    assert main(line) == 0
    assert read_former_places(node, BOOKIE) == hosts, "else nobody could call it any more"
    assert main([*line, "--called", "elsewhere"]) == 0
    assert read_former_places(node, BOOKIE).names == ("elsewhere",)
    assert main(["ca", "publish", ca]) == 2
