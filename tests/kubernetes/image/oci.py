"""An OCI image in a tar file, from layers that are tar files too: no daemon, no registry.

An image is an index, a manifest, a configuration and layers, each named by its hash. `write_image`
puts them together in the layout that `ctr images import` and `skopeo copy oci-archive:` read. A
layer's bytes are streamed: a root file system is some hundred megabytes. Source: the OCI image
specification 1.1. Called by `recipes` and, for the pause image, by `cluster.real_nodes`.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

_MEDIA = "application/vnd.oci.image"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Settings:
    """What a container of the image starts with; the Dockerfile says the same."""

    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    folder: str = "/"

    def to_json(self) -> dict[str, Any]:
        """The `config` object of the image's configuration."""
        return {
            "Env": [f"{name}={value}" for name, value in self.environment.items()],
            "Entrypoint": list(self.entrypoint) or None,
            "Cmd": list(self.command) or None,
            "User": self.user,
            "WorkingDir": self.folder,
        }


def write_layer(out: Path, files: Iterable[tuple[Path, str]], folders: Iterable[str] = ()) -> None:
    """A layer with files and whole folders of this machine, owned by root.

    Args:
        files: what, and its absolute path in the image.
        folders: empty ones that everybody may write to, where a pod mounts nothing.
    """

    def owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        member.mtime = 0
        return member

    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in folders:
            folder = tarfile.TarInfo(path.lstrip("/"))
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(folder)
        for source, path in files:
            tar.add(source, path.lstrip("/"), filter=owned_by_root)


def write_image(out: Path, name: str, layers: Sequence[Path], settings: Settings) -> None:
    """An image tar; it appears under its path only when it is whole.

    Args:
        name: what pods call it, with its tag.
        layers: uncompressed tar files, lowest first.
    """
    temporary = out.with_suffix(".part")
    with tarfile.open(temporary, "w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        described = [_add_layer(tar, layer) for layer in layers]
        configuration = {
            "architecture": "amd64",
            "os": "linux",
            "config": settings.to_json(),
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in described]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_MEDIA}.manifest.v1+json",
            "config": _add_blob(tar, "config.v1+json", configuration),
            "layers": described,
        }
        listed = _add_blob(tar, "manifest.v1+json", manifest)
        listed["annotations"] = {"io.containerd.image.name": name}
        index = {"schemaVersion": 2, "manifests": [listed]}
        _add(tar, "index.json", json.dumps(index).encode())
    temporary.rename(out)


def _add_layer(tar: tarfile.TarFile, layer: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    with layer.open("rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
        size = source.tell()
        source.seek(0)
        _add_stream(tar, f"blobs/sha256/{digest.hexdigest()}", source, size)
    return _describe("layer.v1.tar", digest.hexdigest(), size)


def _add_blob(tar: tarfile.TarFile, kind: str, document: Mapping[str, Any]) -> dict[str, Any]:
    data = json.dumps(document).encode()
    digest = hashlib.sha256(data).hexdigest()
    _add(tar, f"blobs/sha256/{digest}", data)
    return _describe(kind, digest, len(data))


def _describe(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": f"{_MEDIA}.{kind}", "digest": f"sha256:{digest}", "size": size}


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    _add_stream(tar, name, io.BytesIO(data), len(data))


def _add_stream(tar: tarfile.TarFile, name: str, source: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    if name not in tar.getnames():  # two equal layers are one blob
        tar.addfile(member, source)
