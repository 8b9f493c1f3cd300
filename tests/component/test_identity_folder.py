"""Folders of identities and of a CA on a real disk: written and read whole, refused by name.

Nothing here serves or calls: `test_identity_tls` shows what TLS libraries make of the files.
Source: docs/protocol/identity.md "The folder", "Replacing the CA".
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from duramen.cli.main import main
from duramen.runtime.identity import folder as folders
from duramen.runtime.identity import generations
from duramen.runtime.identity.authority import begin_authority, open_authority, read_authority
from duramen.runtime.identity.certificates import Bundle, list_revoked, make_authority, make_key
from duramen.runtime.identity.folder import (
    HeldIdentity,
    encode_bundle,
    encode_key,
    read_folder,
    write_bundle,
    write_folder,
)
from duramen.runtime.identity.names import IdentityError
from tests.unit.identities import BOOKIE, DOMAIN, NOW, usage

YEAR: Final = dt.timedelta(days=365)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a copy to end waits in one test alone."""
    monkeypatch.setattr(generations, "_SETTLING_S", 0.0)


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    begin_authority(tmp_path / "ca", DOMAIN, NOW)
    return tmp_path / "ca"


def issue(ca: Path) -> HeldIdentity:
    with open_authority(ca, NOW) as authority:
        return authority.issue(BOOKIE, NOW)


@pytest.fixture
def node(ca: Path, tmp_path: Path) -> Path:
    write_folder(tmp_path / "node", issue(ca))
    return tmp_path / "node"


def test_an_identity_is_read_as_it_was_issued(node: Path) -> None:
    held = read_folder(node, NOW)
    assert held.identity == BOOKIE
    assert len(held.bundle.lists) == len(held.bundle.anchors) == 1
    assert {path.stat().st_mode & 0o777 for path in node.glob("..data/*")} == {0o600}


def test_a_pods_folder_in_a_volume_of_several_is_read_as_one_generation(
    ca: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kubelet mounts a Secret: the link of the whole volume is swapped while this is read."""
    volume = tmp_path / "volume"

    def mount(generation: str, held: HeldIdentity) -> None:
        place = volume / generation / "bookie-0"
        place.mkdir(parents=True)
        for name, content in list_files(held).items():
            (place / name).write_bytes(content)
            (place / name).chmod(0o600)
        (volume / "..new").symlink_to(generation)
        (volume / "..new").replace(volume / "..data")

    mount("..1", issue(ca))
    (volume / "bookie-0").symlink_to(Path("..data", "bookie-0"))
    with open_authority(ca, NOW) as authority:
        authority.announce(NOW)
    renewed = issue(ca)
    judge = folders._see_one_in_time

    def swap_and_judge(*arguments: Any) -> None:
        if not (volume / "..2").exists():
            mount("..2", renewed)
        judge(*arguments)

    monkeypatch.setattr(folders, "_see_one_in_time", swap_and_judge)
    monkeypatch.setattr(generations, "_SETTLING_S", 2.0)
    found = read_folder(volume / "bookie-0", NOW)
    assert (found.leaf, len(found.bundle.anchors)) == (renewed.leaf, 2)


def test_the_generation_before_stays_and_older_ones_go(node: Path, ca: Path) -> None:
    for _ in range(3):
        write_folder(node, issue(ca))
    assert sorted(path.name for path in node.glob("..[0-9]*")) == ["..3", "..4"]
    assert (node / "..data").readlink() == Path("..4")


def test_a_writer_that_died_halfway_changed_nothing_or_all(
    node: Path, ca: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of its steps."""
    before = read_folder(node, NOW).leaf
    step_count = 0
    while True:
        held = issue(ca)
        with monkeypatch.context() as patch:
            for name in STEPS:
                patch.setattr(generations, name, dying(getattr(generations, name)))
            Dying.left = step_count
            try:
                write_folder(node, held)
                is_dead = False
            except OSError:
                is_dead = True
        found = read_folder(node, NOW).leaf
        assert found == held.leaf if not is_dead else found in (before, held.leaf)
        assert step_count or found == before, "at first nothing has changed"
        before = found
        if not is_dead:
            break
        step_count += 1
    assert step_count >= 8, "every step had its turn"


def test_a_generation_counts_once_all_of_it_is_on_the_disk(
    node: Path, ca: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    held = issue(ca)
    for name in STEPS:
        whole = getattr(generations, name)

        def note(*given: Any, name: str = name, whole: Callable[..., None] = whole) -> None:
            done.append(name)
            whole(*given)

        monkeypatch.setattr(generations, name, note)
    write_folder(node, held)
    files = ["_write"] * 4
    assert done == [*files, "sync_folder", "sync_folder", "_swap", "sync_folder"]


STEPS: Final = ("_write", "sync_folder", "_swap")


class Dying:
    """How many steps are left to whoever writes."""

    left = 0


def dying(step: Callable[..., None]) -> Callable[..., None]:
    def take(*given: Any) -> None:
        if Dying.left == 0:
            raise OSError("died")
        Dying.left -= 1
        step(*given)

    return take


def test_a_reader_never_sees_two_generations(
    node: Path, ca: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of one and a certificate of another would be refused. One that is overtaken twice
    finds files missing, and looks again."""
    monkeypatch.setattr(generations, "_SETTLING_S", 20.0)
    monkeypatch.setattr(generations, "_SETTLING_LOOK_S", 0.0)
    renewals = [issue(ca) for _ in range(40)]
    known = {held.leaf.serial_number for held in [read_folder(node, NOW), *renewals]}
    stop = threading.Event()

    def renew() -> None:
        try:
            for held in renewals:
                write_folder(node, held)
        finally:
            stop.set()

    writer = threading.Thread(target=renew)
    writer.start()
    read_count = 0
    leaves = set()
    try:
        while not stop.is_set():
            leaves.add(read_folder(node, NOW).leaf.serial_number)
            read_count += 1
    finally:
        writer.join()
    assert read_count > 0
    assert leaves <= known
    assert read_folder(node, NOW).leaf == renewals[-1].leaf


@pytest.mark.parametrize("name", ["tls.key", "tls.crt", "ca.crt", "ca.crl"])
def test_a_copy_that_goes_on_is_waited_for(
    name: str, ca: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied file after file, as a person does: no link, and for a moment two generations, of
    which the file that is being copied is empty, half there, or the other's."""
    monkeypatch.setattr(generations, "_SETTLING_S", 20.0)
    plain = tmp_path / "plain"
    plain.mkdir()
    held = issue(ca)
    files = list_files(held)
    copy(plain, files | {name: b""})
    rest = [files[name][: len(files[name]) // 2], list_files(make_other(tmp_path))[name]]

    def go_on(_s: float) -> None:
        copy(plain, {name: rest.pop(0) if rest else files[name]})

    # The module's own clock: threads of other tests sleep, too.
    monkeypatch.setattr(generations, "time", SimpleNamespace(monotonic=time.monotonic, sleep=go_on))
    assert read_folder(plain, NOW).leaf == held.leaf
    assert not rest


def test_a_folder_that_is_being_made_is_waited_for(
    ca: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = issue(ca)

    def finish(_s: float) -> None:
        write_folder(tmp_path / "missing", held)

    monkeypatch.setattr(generations, "_SETTLING_S", 20.0)
    monkeypatch.setattr(
        generations, "time", SimpleNamespace(monotonic=time.monotonic, sleep=finish)
    )
    assert read_folder(tmp_path / "missing", NOW).leaf == held.leaf


def list_files(held: HeldIdentity) -> dict[str, bytes]:
    leaf = held.leaf.public_bytes(Encoding.PEM)
    return {"tls.key": encode_key(held.key), "tls.crt": leaf, **encode_bundle(held.bundle)}


def make_other(folder: Path) -> HeldIdentity:
    """Of another CA of the same cluster."""
    begin_authority(folder / "other", DOMAIN, NOW)
    return issue(folder / "other")


def copy(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.touch(mode=0o600)
        path.write_bytes(content)


def remove(name: str) -> Callable[[Path], object]:
    return lambda place: (place / name).unlink()


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda place: (place / name).write_bytes(content)


def two_of_one_subject(place: Path) -> None:
    (place / "ca.crt").write_bytes((place / "ca.crt").read_bytes() * 2)


def list_of_a_stranger(place: Path) -> None:
    stranger = make_authority(DOMAIN, NOW)
    write("ca.crl", list_revoked(stranger, {}, NOW).public_bytes(Encoding.PEM))(place)


def anchor_without_a_list(place: Path) -> None:
    other = make_authority(DOMAIN, NOW).certificate.public_bytes(Encoding.PEM)
    (place / "ca.crt").write_bytes((place / "ca.crt").read_bytes() + other)


def five_anchors(place: Path) -> None:
    others = [make_authority(DOMAIN, NOW).certificate for _ in range(4)]
    added = b"".join(other.public_bytes(Encoding.PEM) for other in others)
    (place / "ca.crt").write_bytes((place / "ca.crt").read_bytes() + added)


WRONG: Final[dict[str, tuple[Callable[[Path], object], str]]] = {
    "no key": (remove("tls.key"), "tls.key is missing"),
    "no certificate": (remove("tls.crt"), "tls.crt is missing"),
    "no anchor": (remove("ca.crt"), "ca.crt is missing"),
    "another key": (write("tls.key", encode_key(make_key())), "not the key of"),
    "no key in it": (write("tls.key", b"x"), "no key in PEM"),
    "no certificate in it": (write("tls.crt", b"x"), "no certificate in PEM"),
    "no anchor in it": (write("ca.crt", b""), "no certificates in PEM"),
    "no list in it": (write("ca.crl", b"x"), "no revocation lists in PEM"),
    "endless": (write("ca.crt", b"x" * (1 << 21)), "more than 1048576 bytes"),
    "open to others": (lambda place: (place / "tls.key").chmod(0o604), "chmod 600"),
    "open to its group": (lambda place: (place / "tls.key").chmod(0o640), "chmod 600"),
    "written by its group": (lambda place: (place / "tls.key").chmod(0o620), "chmod 600"),
    "two anchors of one subject": (two_of_one_subject, "one subject"),
    "a stranger's list": (list_of_a_stranger, "signed by no CA"),
    "an anchor without a list": (anchor_without_a_list, "1 lists for 2 CAs"),
    "five anchors": (five_anchors, "5 certificates"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_folder_is_named(node: Path, name: str) -> None:
    spoil, cause = WRONG[name]
    spoil(node / "..data")
    with pytest.raises(IdentityError, match=cause):
        read_folder(node, NOW)


OURS: Final = 1_000
HANDED_TO: Final = 2_000
ALLOWED: Final = [(OURS, OURS, 0o600), (0, 0, 0o600), (OURS, OURS, 0o700), (0, HANDED_TO, 0o440)]
REFUSED: Final = [
    (OURS, OURS, 0o640), (OURS, HANDED_TO, 0o440), (0, OURS, 0o440), (0, 3_000, 0o440),
    (0, HANDED_TO, 0o460), (0, HANDED_TO, 0o444), (OURS, OURS, 0o604), (3_000, 3_000, 0o600),
]  # fmt: skip


@pytest.mark.parametrize(("user", "group", "mode"), ALLOWED + REFUSED)
def test_a_key_is_its_owners_or_handed_to_a_group_of_the_process_by_a_kubelet(
    user: int, group: int, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: OURS)
    monkeypatch.setattr(os, "getegid", lambda: OURS)
    monkeypatch.setattr(os, "getgroups", lambda: [OURS, HANDED_TO])
    found = os.stat_result((0o100_000 | mode, 1, 1, 1, user, group, 1, 0, 0, 0))
    if (user, group, mode) in ALLOWED:
        folders.judge_mode(Path("tls.key"), found)
        return
    with pytest.raises(IdentityError, match="another user" if user == 3_000 else "by others"):
        folders.judge_mode(Path("tls.key"), found)


def test_a_link_that_leads_nowhere_is_looked_at_again_and_then_named(
    node: Path, ca: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet removes the generation before as soon as it has swapped the link."""
    held = issue(ca)
    for path in node.glob("..[0-9]*"):
        shutil.rmtree(path)
    with pytest.raises(IdentityError, match="leads to nothing"):
        read_folder(node, NOW)
    monkeypatch.setattr(generations, "_SETTLING_S", 20.0)
    patched = "duramen.runtime.identity.generations.time.sleep"
    monkeypatch.setattr(patched, lambda _s: write_folder(node, held))
    assert read_folder(node, NOW).leaf == held.leaf


def test_a_folder_whose_list_went_first_has_not_no_list(
    node: Path, ca: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generation that is being removed while it is read counts for nothing."""
    held = read_folder(node, NOW)
    with open_authority(ca, NOW) as authority:
        authority.revoke([held.leaf.serial_number], NOW)
        bundle = authority.bundle
    whole = folders.read_bundle

    def swap_first(place: Path, now: dt.datetime) -> Bundle:
        if place.name == "..1":
            (place / "ca.crl").unlink()
            with pytest.raises(IdentityError, match="is revoked"):
                write_bundle(node, DOMAIN, bundle, NOW)
        return whole(place, now)

    monkeypatch.setattr(folders, "read_bundle", swap_first)
    monkeypatch.setattr(generations, "_SETTLING_S", 20.0)
    with pytest.raises(IdentityError, match="is revoked"):
        read_folder(node, NOW)


def test_a_folder_is_written_over_by_nobody_else(node: Path, ca: Path, tmp_path: Path) -> None:
    with open_authority(ca, NOW) as authority:
        other = authority.issue(BOOKIE._replace(name="bookie-1"), NOW)
    with pytest.raises(IdentityError, match=r"is of spiffe://.*bookie-0: give another folder"):
        write_folder(node, other)
    with pytest.raises(IdentityError, match="holds a CA"):
        write_folder(ca, other)
    with pytest.raises(IdentityError, match="holds a CA"):
        write_bundle(ca, DOMAIN, other.bundle, NOW)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(IdentityError, match="written by others: chmod 700"):
        write_folder(open_to_all, other)


def test_a_clock_that_is_off_is_named(node: Path) -> None:
    with pytest.raises(
        IdentityError,
        match=r"not yet valid.*11-27 11:55.*clock says.*11-20.*if that clock is right, replace",
    ):
        read_folder(node, NOW - dt.timedelta(days=7))


# --- The CA --------------------------------------------------------------------------------------


def test_a_ca_is_not_overwritten_unless_it_is_to_be_replaced(ca: Path, node: Path) -> None:
    with pytest.raises(IdentityError, match="holds a CA already"):
        begin_authority(ca, DOMAIN, NOW)
    with pytest.raises(IdentityError, match="of the cluster"):
        begin_authority(ca, "f" * 32, NOW, is_replacing=True)
    begin_authority(ca, DOMAIN, NOW, is_replacing=True)
    with open_authority(ca, NOW) as authority:
        assert authority.list_issued() == [], "what the former one issued is not its own"
        with pytest.raises(IdentityError, match=r"knows it now, and .*no CA of ca"):
            write_bundle(node, DOMAIN, authority.bundle, NOW)
    with pytest.raises(IdentityError, match="no CA of ca"):
        read_folder(node, NOW)
    write_folder(node, issue(ca))
    assert read_folder(node, NOW).identity == BOOKIE


def test_what_was_revoked_stays_revoked(ca: Path, node: Path) -> None:
    first, second = issue(ca), issue(ca)
    for held in (first, second):
        with open_authority(ca, NOW) as authority:
            authority.revoke([held.leaf.serial_number], NOW)
    with open_authority(ca, NOW) as authority:
        assert set(authority.list_revoked()) == {
            first.leaf.serial_number,
            second.leaf.serial_number,
        }
        write_folder(node, first._replace(bundle=authority.bundle))
    with pytest.raises(IdentityError, match="is revoked"):
        read_folder(node, NOW)


def test_a_ca_of_a_parent_is_the_anchor_itself(ca: Path, tmp_path: Path) -> None:
    parent = make_authority("e" * 32, NOW)
    with pytest.raises(IdentityError, match="may sign no other CA"):
        read_authority(ca, NOW)
    begin_authority(tmp_path / "child", DOMAIN, NOW, parent=parent)
    held = issue(tmp_path / "child")
    write_folder(tmp_path / "node", held)
    assert read_folder(tmp_path / "node", NOW).bundle.anchors == held.bundle.anchors
    write_folder(tmp_path / "node", held._replace(bundle=Bundle((parent.certificate,))))
    with pytest.raises(IdentityError, match="no CA of ca"):
        read_folder(tmp_path / "node", NOW)


def test_a_ca_of_anybodys_may_be_the_parent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an administrator has one: with no bound on what stands below it, and no list."""
    now, key, name = dt.datetime.now(dt.UTC), make_key(), x509.Name([])
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).serial_number(1)
        .public_key(key.public_key()).not_valid_before(now).not_valid_after(now + 2 * YEAR)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    parent = tmp_path / "parent"
    parent.mkdir()
    pem = certificate.public_bytes(Encoding.PEM)
    copy(parent, {"ca.key": encode_key(key), "ca.crt": pem})
    line = ["ca", "init", str(tmp_path / "ca"), "--uuid", DOMAIN, "--parent"]
    copy(tmp_path, {"ca.key": encode_key(make_key()), "ca.crt": pem})
    assert main([*line, str(tmp_path)]) == 1
    assert "is not the key of" in capsys.readouterr().err
    assert main([*line, str(parent)]) == 0
    with open_authority(tmp_path / "ca", now) as authority:
        (anchor,) = authority.bundle.anchors
        anchor.verify_directly_issued_by(certificate)
        assert anchor.not_valid_after_utc == certificate.not_valid_after_utc


def test_a_line_that_was_cut_off_is_no_certificate(ca: Path) -> None:
    first = issue(ca)
    path = ca / "issued.jsonl"
    path.write_bytes(path.read_bytes() + b'{"serial":"12')
    with open_authority(ca, NOW) as authority:
        assert [one.serial for one in authority.list_issued()] == [first.leaf.serial_number]
    second = issue(ca)
    with open_authority(ca, NOW) as authority:
        found = [one.serial for one in authority.list_issued()]
    assert found == [first.leaf.serial_number, second.leaf.serial_number]


def test_what_has_ended_leaves_the_list_and_dates_stay(ca: Path) -> None:
    held = issue(ca)
    with open_authority(ca, NOW) as authority:
        authority.revoke([held.leaf.serial_number, 7], NOW)
    day = dt.timedelta(days=1)
    with open_authority(ca, NOW + day) as authority:
        authority.revoke([8], NOW + day)
        assert authority.list_revoked() == {held.leaf.serial_number: NOW, 7: NOW, 8: NOW + day}
    with open_authority(ca, NOW + 8 * day) as authority:
        authority.revoke([], NOW + 8 * day)
        assert authority.list_revoked() == {7: NOW, 8: NOW + day}, "nobody knows when they end"


def test_a_ca_that_lost_a_file_is_not_begun_anew_by_mistake(ca: Path) -> None:
    (ca / "..data" / "ca.crt").unlink()
    with pytest.raises(IdentityError, match="holds a CA already"):
        begin_authority(ca, DOMAIN, NOW)
    shutil.rmtree((ca / "..data").resolve())
    begin_authority(ca, DOMAIN, NOW, is_replacing=True)
    with open_authority(ca, NOW) as authority:
        assert authority.list_issued() == []


def test_the_commands_make_issue_revoke_and_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ca, node, other = (str(tmp_path / name) for name in ("ca", "node", "other"))
    assert main(["ca", "init", ca, "--uuid", DOMAIN]) == 0
    assert main(["ca", "init", ca, "--uuid", DOMAIN]) == 1
    line = ["ca", "issue", ca, "bookie", "bookie-0", "--out", node]
    assert main([*line, "--called", "bookie-0", "--called", "::1", "--days", "90"]) == 0
    assert main(["ca", "issue", ca, "client", "ann", "--out", other]) == 0
    assert main(["ca", "show", node]) == 0
    assert f"spiffe://{DOMAIN}/bookie/bookie-0" in capsys.readouterr().out
    assert main(["ca", "show", ca, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["authority of"] == DOMAIN and shown["issued_count"] == 2
    assert main(["ca", "revoke", ca, "bookie/bookie-0", other]) == 0
    assert main(["ca", "show", node]) == 0, "it has not heard of it"
    capsys.readouterr()
    assert main(["ca", "publish", ca, node, str(tmp_path / "none"), other]) == 1
    said = capsys.readouterr().err
    assert "knows it now, and" in said and "tls.crt is missing" in said
    assert main(["ca", "show", node]) == 1
    assert "is revoked: issue another one" in capsys.readouterr().err
    assert main(["ca", "show", other]) == 0
    assert main(["ca", "list", ca]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[-1] for row in rows if "/bookie-0" in row[0]] == ["True"]
    assert [row[-1] for row in rows if "/ann" in row[0]] == ["False"]
    for wrong, code in (
        (["revoke", ca, "bookie/bookie-1"], 1),
        (["revoke", ca, "bookie"], 2),
        (["revoke", ca, "root/bookie-1"], 2),
        (["issue", ca, "bookie", "bookie-1", "--out", node], 1),
        (["issue", ca, "bookie", "b", "--out", ca], 1),
        (["issue", ca, "bookie", "b", "--out", "b", *["--called", "h"] * 9], 1),
        (["issue", ca, "root", "a", "--out", node], 2),
        (["issue", ca, "client", "a", "--out", node, "--called", "h"], 2),
        (["issue", ca, "bookie", "a", "--out", node, "--called", "*.h"], 2),
        (["issue", ca, "bookie", "a", "--out", node, "--days", "91"], 2),
        (["issue", str(tmp_path / "none"), "bookie", "a", "--out", node], 1),
        (["publish", ca, ca], 1),
        (["init", ca, "--uuid", "x"], 2),
    ):
        assert main(["ca", *wrong]) == code, wrong
    assert main(["ca", "revoke", ca, "12ab", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"revoked": ["12ab"]}
    assert main(["ca", "init", ca, "--replace"]) == 0
    assert main(["ca", "show", other]) == 0, "it trusts the former one still"
