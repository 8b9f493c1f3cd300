"""The identities that `duramen run` makes: one for each service, used again, renewed in time.

Nothing runs here: `tests/process/test_identities` has a whole cluster.
Source: docs/protocol/identity.md "Certificates", "The folder".
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import threading
from pathlib import Path

import pytest

from duramen.client.credentials.local_cluster import OPERATOR_FOLDER, WRITER_FOLDER
from duramen.cluster import local_identities
from duramen.cluster.layout import ClusterSize, ProcessPlan, plan_cluster
from duramen.cluster.local_identities import (
    LocalIdentities,
    is_opening_due,
    remove_local_access,
)
from duramen.runtime.identity import folder_watch
from duramen.runtime.identity.authority import begin_authority, open_authority
from duramen.runtime.identity.certificates import LEAF_LIFE, find_issuer, list_anchors
from duramen.runtime.identity.folder import read_folder
from duramen.runtime.identity.generations import LINK
from duramen.runtime.identity.names import IdentityError
from duramen.runtime.identity.zookeeper_files import (
    make_probe_context,
    write_held_files,
    write_server_files,
)
from tests.component.issuing_world import read_time
from tests.pauses import let_pass
from tests.unit.identities import DOMAIN
from tests.waiting import wait_for


def plan(folder: Path) -> list[ProcessPlan]:
    return plan_cluster(
        folder, ClusterSize(), base_port=0, has_zookeeper=True, remembered={}, security="on"
    )


def read_serials(identities: LocalIdentities, plans: list[ProcessPlan]) -> dict[str, int]:
    return {
        one.node_id: read_folder(identities.folder_of(one.node_id), read_time()).leaf.serial_number
        for one in plans
    }


def test_what_is_valid_is_used_again_and_what_is_due_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = plan(tmp_path)
    identities = LocalIdentities(tmp_path)
    identities.prepare(plans)
    first = read_serials(identities, plans)
    assert len(first) == 7
    again = LocalIdentities(tmp_path)
    again.prepare(plans)
    assert read_serials(again, plans) == first
    later = read_time() + LEAF_LIFE * 3 / 4
    monkeypatch.setattr(local_identities, "_now", lambda: later)
    again.renew_due(plans)
    renewed = {
        one.node_id: read_folder(again.folder_of(one.node_id), later + dt.timedelta(hours=1))
        for one in plans
    }
    assert not {held.leaf.serial_number for held in renewed.values()} & set(first.values())


def _run_before(folder: Path, *uuids: str) -> None:
    """What a ZooKeeper and bookies without identities leave behind."""
    (folder / "zookeeper-0" / "data" / "version-2").mkdir(parents=True)
    (folder / "zookeeper-0" / "data" / "version-2" / "log.1").touch()
    for number, uuid in enumerate(uuids):
        (folder / f"bookie-{number}").mkdir()
        cookie = json.dumps({"cluster_uuid": uuid})
        (folder / f"bookie-{number}" / "cookie.json").write_text(cookie)


def read_issuers(identities: LocalIdentities, plans: list[ProcessPlan]) -> set[tuple[str, ...]]:
    """Who issued, and who is trusted, over all folders."""
    names = [*(one.node_id for one in plans), OPERATOR_FOLDER.name, WRITER_FOLDER.name]
    held = [read_folder(identities.folder_of(name), read_time()) for name in names]
    return {(str(find_issuer(one.leaf, one.bundle)), *list_anchors(one.bundle)) for one in held}


def test_another_ca_is_trusted_by_all_before_anybody_has_a_certificate_of_it(
    tmp_path: Path,
) -> None:
    plans = plan(tmp_path)
    identities = LocalIdentities(tmp_path)
    identities.prepare(plans)
    ((issuer, first),) = read_issuers(identities, plans)
    assert issuer == first

    def step(name: str) -> list[str]:
        with open_authority(tmp_path / "ca", read_time()) as authority:
            if name == "announce":
                authority.announce(read_time())
            elif name == "switch":
                authority.switch(read_time(), is_known_everywhere=True)
            else:
                authority.retire(read_time(), is_wanted_now=True)
            return list_anchors(authority.bundle)

    step("announce")
    second, _ = step("switch")
    identities.renew_due(plans)
    assert read_issuers(identities, plans) == {(first, second, first)}, "trusted first of all"
    identities.renew_due(plans)
    assert read_issuers(identities, plans) == {(second, second, first)}
    step("retire")
    identities.renew_due(plans)
    assert read_issuers(identities, plans) == {(second, second)}
    before = read_serials(identities, plans)
    identities.renew_due(plans)
    assert read_serials(identities, plans) == before, "all is as it should be"


def test_a_ca_that_is_gone_leaves_nobody_with_its_certificate(tmp_path: Path) -> None:
    plans = plan(tmp_path)
    identities = LocalIdentities(tmp_path)
    identities.prepare(plans)
    begin_authority(tmp_path / "ca", identities._domain, read_time(), is_replacing=True)
    LocalIdentities(tmp_path).prepare(plans)
    ((issuer, *anchors),) = read_issuers(identities, plans)
    assert [issuer] == anchors, "all of the new one, which alone is trusted"


def test_the_ca_is_of_the_cluster_that_ran_without_identities(tmp_path: Path) -> None:
    plans = plan(tmp_path)
    _run_before(tmp_path, DOMAIN, DOMAIN)
    identities = LocalIdentities(tmp_path)
    identities.prepare(plans)
    assert read_folder(identities.folder_of("bookie-0"), read_time()).identity.domain == DOMAIN
    operator = read_folder(identities.operator_folder, read_time()).identity
    assert str(operator) == f"spiffe://{DOMAIN}/operator/local"
    writer = read_folder(tmp_path / WRITER_FOLDER, read_time()).identity
    assert str(writer) == f"spiffe://{DOMAIN}/corewriter/local"


def test_each_sign_by_itself_has_none_open_the_nodes(tmp_path: Path) -> None:
    plans = plan(tmp_path)
    assert not is_opening_due(tmp_path, plans)
    begin_authority(tmp_path / "ca", DOMAIN, read_time())
    assert is_opening_due(tmp_path, plans), "killed next: ZooKeeper has to hold the CA's cluster"
    assert not is_opening_due(tmp_path, plans[1:]), "another's ZooKeeper"
    _run_before(tmp_path, DOMAIN)
    assert not is_opening_due(tmp_path, plans), "made by hand, of the cluster that is there"
    identities = LocalIdentities(tmp_path)
    identities.prepare(plans)
    assert is_opening_due(tmp_path, plans), "nodes may be made with rights from now on"
    remove_local_access(tmp_path)
    assert not is_opening_due(tmp_path, plans)
    identities.expect_guarded()
    assert is_opening_due(tmp_path, plans)


@pytest.mark.parametrize("uuids", [(), (DOMAIN, "f" * 32), ("no uuid",)])
def test_no_ca_is_made_for_a_cluster_that_is_not_known(
    tmp_path: Path, uuids: tuple[str, ...]
) -> None:
    _run_before(tmp_path, *uuids)
    with pytest.raises(IdentityError, match=r"start it with --security none, ask it"):
        LocalIdentities(tmp_path).prepare(plan(tmp_path))
    assert not (tmp_path / "ca").exists()


def test_another_zookeeper_has_to_know_the_ca_before(tmp_path: Path) -> None:
    plans = plan_cluster(
        tmp_path, ClusterSize(), base_port=0, has_zookeeper=False, remembered={}, security="on"
    )
    with pytest.raises(IdentityError, match=r"`duramen ca init .*/ca --uuid`"):
        LocalIdentities(tmp_path).prepare(plans)


def test_a_folder_that_cannot_be_written_keeps_no_other_from_its_identity(tmp_path: Path) -> None:
    plans = plan(tmp_path)
    identities = LocalIdentities(tmp_path)
    bad = identities.folder_of("bookie-0")
    bad.mkdir(parents=True)
    bad.chmod(0o777)
    with pytest.raises(IdentityError, match="may be written by others"):
        identities.prepare(plans)
    others = [one for one in plans if one.node_id != "bookie-0"]
    assert len(read_serials(identities, others)) == 6


def test_what_zookeeper_shows_is_written_anew_and_what_fails_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_watch, "LOOK_S", 0.01)
    monkeypatch.setattr(local_identities, "RENEWAL_LOOK_S", 0.01)
    plans, faults = plan(tmp_path), list[str]()
    identities = LocalIdentities(tmp_path)
    identities.prepare(plans)
    folder, data_dir = identities.folder_of("zookeeper-0"), plans[0].data_dir
    assert data_dir is not None
    copy = data_dir / "tls" / "server.pem"

    async def scenario() -> None:
        write_server_files(folder, data_dir)
        before = copy.read_bytes()
        identities.start(plans, faults.append)
        folder.rename(
            tmp_path / "lost"
        )  # at once: it is written again as soon as a file is missing
        await wait_for(lambda: copy.exists() and copy.read_bytes() != before)
        assert copy.read_bytes().endswith((folder / "tls.crt").read_bytes())
        assert not faults
        bad = identities.folder_of("bookie-0")
        bad.chmod(0o777)
        (bad / LINK).unlink()
        await wait_for(lambda: bool(faults))
        await let_pass(0.1, what="some looks more")
        assert len(faults) == 1 and "may be written by others" in faults[0]
        await identities.stop()

    asyncio.run(scenario())


def test_a_server_is_asked_how_it_is_while_its_identity_is_renewed(tmp_path: Path) -> None:
    """OpenSSL reads the certificate first, then opens the file again for the key."""
    other = LocalIdentities(tmp_path / "other")
    plans = plan(tmp_path)
    identities = LocalIdentities(tmp_path)
    identities.prepare(plans)
    other.prepare(plans)
    held = [read_folder(one.folder_of("zookeeper-0"), read_time()) for one in (identities, other)]
    write_held_files(held[0], tmp_path)
    is_over = threading.Event()

    def renew() -> None:
        while not is_over.is_set():
            for one in held:
                write_held_files(one, tmp_path)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        for _ in range(100):
            make_probe_context(tmp_path)
    finally:
        is_over.set()
        thread.join()
