"""The identities that `duramen run` makes: one for each service, used again, renewed in time.

Nothing runs here: `tests/process/test_identities` has a whole cluster.
Source: docs/protocol/identity.md "Certificates", "The folder".
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from duramen.cluster import local_identities
from duramen.cluster.layout import ClusterSize, ProcessPlan, plan_cluster
from duramen.cluster.local_identities import LocalIdentities
from duramen.runtime.identity.certificates import LEAF_LIFE
from duramen.runtime.identity.folder import read_folder
from duramen.runtime.identity.names import IdentityError
from tests.component.issuing_world import read_time
from tests.unit.identities import DOMAIN


def plan(folder: Path) -> list[ProcessPlan]:
    return plan_cluster(
        folder, ClusterSize(), base_port=0, has_zookeeper=True, remembered={}, is_secure=True
    )


def read_serials(identities: LocalIdentities, plans: list[ProcessPlan]) -> dict[str, int]:
    return {
        one.node_id: read_folder(identities.folder_of(one.node_id), read_time()).leaf.serial_number
        for one in plans
        if one.role != "zookeeper"
    }


def test_what_is_valid_is_used_again_and_what_is_due_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = plan(tmp_path)
    identities = LocalIdentities(tmp_path)
    identities.prepare(None, plans)
    first = read_serials(identities, plans)
    assert len(first) == 6
    again = LocalIdentities(tmp_path)
    again.prepare(None, plans)
    assert read_serials(again, plans) == first
    later = read_time() + LEAF_LIFE * 3 / 4
    monkeypatch.setattr(local_identities, "_now", lambda: later)
    again.renew_due(plans)
    renewed = {
        one.node_id: read_folder(again.folder_of(one.node_id), later + dt.timedelta(hours=1))
        for one in plans
        if one.role != "zookeeper"
    }
    assert not {held.leaf.serial_number for held in renewed.values()} & set(first.values())


def test_the_ca_is_of_the_cluster_that_is_there(tmp_path: Path) -> None:
    plans = plan(tmp_path)
    identities = LocalIdentities(tmp_path)
    identities.prepare(DOMAIN, plans)
    assert read_folder(identities.folder_of("bookie-0"), read_time()).identity.domain == DOMAIN
    with pytest.raises(IdentityError, match=r"ca init --replace"):
        LocalIdentities(tmp_path).prepare("f" * 32, plans)


def test_a_folder_that_cannot_be_written_keeps_no_other_from_its_identity(tmp_path: Path) -> None:
    plans = plan(tmp_path)
    identities = LocalIdentities(tmp_path)
    bad = identities.folder_of("bookie-0")
    bad.mkdir(parents=True)
    bad.chmod(0o777)
    with pytest.raises(IdentityError, match="may be written by others"):
        identities.prepare(None, plans)
    others = [one for one in plans if one.node_id != "bookie-0"]
    assert len(read_serials(identities, others)) == 5
