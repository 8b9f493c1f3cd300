"""As whom a part of an archive job calls: the folder decides, and the address carries no key.

Source: docs/archive.md "In a cluster".
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from duramen.runtime.identity.names import IdentityError
from duramen_spark.cluster_address import ClusterAddress, open_security
from tests.component.issuing_world import IssuingWorld


def test_a_job_calls_as_an_archive_or_an_operator_and_as_nobody_else(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)
    for role in ("archive", "operator"):
        folder = world.issue(role, f"{role}-0")
        assert open_security(str(folder)).identity.role == role
    for folder in (world.server, world.issue("client", "ann"), world.issue("corewriter", "app")):
        with pytest.raises(IdentityError, match="ca issue CA archive NAME"):
            open_security(str(folder))
    with pytest.raises(IdentityError, match=r"tls\.key is missing"):
        open_security(str(tmp_path / "none"))


def test_what_travels_to_executors_names_a_folder_and_holds_no_key(tmp_path: Path) -> None:
    folder = IssuingWorld(tmp_path).issue("archive", "nightly")
    address = ClusterAddress("zk:1", "c", identity=str(folder))
    travelling = pickle.dumps(address)
    assert pickle.loads(travelling) == address
    assert b"PRIVATE KEY" in (folder / "tls.key").read_bytes()
    assert b"PRIVATE KEY" not in travelling
