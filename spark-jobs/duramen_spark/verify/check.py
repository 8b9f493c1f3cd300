"""Reads a cold copy, whole, and names everything that is not what it was: file, row group, entries.

Every byte is read: SHA-256 of each row group and footer, then the rows, which must rebuild entries
with the identities, counts and ends that the manifest says. Unlike a reader it goes on behind the
first fault. Blocking, a row group in memory at a time; nothing is changed here.

Called by `verify.driver` through tasks, and by compaction. Source: A1, docs/protocol/archive.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from duramen.core.flexible.segment import AnySegment
from duramen.errors import DuramenError
from duramen.ids import EntryId, LedgerId
from duramen.runtime.cold import ColdStore, NotThere, find_manifest, open_cold_store
from duramen.wire.cold.chain import Chain, chain_identities, chain_records
from duramen.wire.cold.manifest import FilePart, Manifest, ManifestError
from duramen.wire.cold.part_reader import PartReader
from duramen.wire.cold.part_writer import MAGIC
from duramen.wire.cold.paths import segment_folder
from duramen.wire.cold.rebuild import ColdDataError
from duramen.wire.metadata_json import read_any_segment
from duramen_spark.archive.commit import check_fits
from duramen_spark.cold_parts import open_part


@dataclass(frozen=True, slots=True)
class ArchiveDamage:
    """One thing that is not what it was.

    Attributes:
        path: of the file, relative to the store's root; a folder where there is no manifest.
        kind: "manifest", "missing", "size", "bytes", "rows" or "bookies".
        row_group: index among the segment's row groups of the file; None: all of it.
        first_entry, last_entry: what cannot be relied on; None: the whole segment.
    """

    path: str
    kind: str
    detail: str
    row_group: int | None = None
    first_entry: int | None = None
    last_entry: int | None = None

    def __str__(self) -> str:
        group = "" if self.row_group is None else f" row group {self.row_group}"
        first, last = self.first_entry, self.last_entry
        entries = "" if first is None else f" entries {first}…{last}"
        return f"{self.path}{group}{entries}: {self.kind}: {self.detail}"


@dataclass(frozen=True, slots=True)
class VerifyTask:
    """A segment whose cold copy is to be read; plain values, so that it can be sent anywhere."""

    cold_store: str
    cluster_uuid: str
    segment: bytes


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What was seen of it.

    Attributes:
        identities: of the manifest, for a comparison with bookies; None: there is no manifest.
        failure: why nothing is known; empty: `damages` are all there are.
    """

    damages: tuple[ArchiveDamage, ...] = ()
    identities: Chain | None = None
    file_count: int = 0
    record_count: int = 0
    size_bytes: int = 0
    failure: str = ""

    def to_json(self) -> dict[str, Any]:
        """For a report."""
        return {
            "files": self.file_count,
            "records": self.record_count,
            "bytes": self.size_bytes,
            "failure": self.failure or None,
        }


def verify_segment(task: VerifyTask) -> VerifyResult:
    """Run one task."""
    segment = read_any_segment(task.segment)
    try:
        store = open_cold_store(task.cold_store)
        return check_segment(store, task.cluster_uuid, segment)
    except (DuramenError, OSError) as error:
        return VerifyResult(failure=str(error))


def check_segment(store: ColdStore, cluster: str, segment: AnySegment) -> VerifyResult:
    """Read everything of a segment's cold copy.

    Raises:
        ColdStoreDown: nothing is known.
    """
    copy = segment.cold_copy
    assert copy is not None, segment
    folder = segment_folder(cluster, segment.log_id, segment.epoch)
    try:
        manifest = find_manifest(
            store,
            cluster,
            segment.log_id,
            segment.epoch,
            attempt=copy.attempt,
            sha256=copy.manifest_sha256,
        )
        check_fits(manifest, segment)
    except NotThere:
        return VerifyResult((ArchiveDamage(folder, "missing", "there is no manifest"),))
    except ManifestError as error:
        return VerifyResult((ArchiveDamage(folder, "manifest", str(error)),))
    damages = [damage for part in manifest.files for damage in check_part(store, manifest, part)]
    return VerifyResult(
        tuple(damages),
        manifest.identities,
        len(manifest.files),
        manifest.totals.record_count,
        manifest.size_bytes,
    )


def check_part(store: ColdStore, manifest: Manifest, part: FilePart) -> list[ArchiveDamage]:
    """Read everything of a file that is the segment's.

    Raises:
        ColdStoreDown: nothing is known.
    """
    path = manifest.path_of(part)
    ends = {"first_entry": int(part.first_entry), "last_entry": int(part.last_entry)}
    try:
        size_bytes = store.size(path)
        if size_bytes != part.size_bytes:
            detail = f"{size_bytes} bytes, not {part.size_bytes}"
            return [ArchiveDamage(path, "size", detail, **ends)]
        if store.read(path, 0, len(MAGIC)) != MAGIC:
            return [ArchiveDamage(path, "bytes", "it does not begin as a Parquet file", **ends)]
        reader = open_part(store, manifest, part)
        return _check_groups(store, path, reader, manifest.ledger_id)
    except NotThere:
        return [ArchiveDamage(path, "missing", "there is no such file", **ends)]


def _check_groups(
    store: ColdStore, path: str, reader: PartReader, ledger_id: LedgerId
) -> list[ArchiveDamage]:
    part = reader.part
    ends = {"first_entry": int(part.first_entry), "last_entry": int(part.last_entry)}
    damages = []
    footer_is_good = True
    try:
        reader.read_footer()
    except ColdDataError as error:
        footer_is_good = False
        damages.append(ArchiveDamage(path, "bytes", f"footer: {error}", **ends))
    identities, records = Chain(), Chain()
    for index, group in enumerate(part.row_groups):
        own = {"first_entry": int(group.first_entry), "last_entry": int(group.last_entry)}
        try:
            data = store.read(path, group.offset, group.size_bytes)
            reader.check_group(index, data)
        except ColdDataError as error:
            damages.append(ArchiveDamage(path, "bytes", str(error), index, **own))
            continue
        if not footer_is_good:
            continue
        try:
            table = reader.decode_table(index, data)
            sums = [entry.sum for entry in reader.rebuild(index, table)]
        except ColdDataError as error:
            damages.append(ArchiveDamage(path, "rows", str(error), index, **own))
            continue
        identities = identities.plus(
            chain_identities(ledger_id, [(one.entry_id, one.identity_crc) for one in sums])
        )
        records = records.plus(
            chain_records(ledger_id, [(one.entry_id, one.flags, one.plain_crc) for one in sums])
        )
    if not damages and identities != part.identities:
        damages.append(ArchiveDamage(path, "rows", "other entries than the manifest says", **ends))
    if not damages and records != part.records:
        damages.append(ArchiveDamage(path, "rows", "other records than the manifest says", **ends))
    return damages


def is_whole(store: ColdStore, manifest: Manifest) -> str:
    """Why the files of a manifest are not whole; empty: they are.

    Raises:
        ColdStoreDown: nothing is known.
    """
    for part in manifest.files:
        damages = check_part(store, manifest, part)
        if damages:
            return str(damages[0])
    return ""


def find_sizes_fault(store: ColdStore, manifest: Manifest) -> str:
    """Why a manifest's files cannot all be there; empty: they have the sizes that they should.

    Raises:
        ColdStoreDown: nothing is known.
    """
    for part in manifest.files:
        path = manifest.path_of(part)
        try:
            size_bytes = store.size(path)
        except NotThere:
            return f"{path} is not there"
        if size_bytes != part.size_bytes:
            return f"{path} has {size_bytes} bytes, not {part.size_bytes}"
    return ""


def last_entry_of(segment: AnySegment) -> EntryId:
    """The last entry of a closed segment that has one."""
    assert segment.last_entry is not None and segment.last_entry >= 0, segment
    return segment.last_entry
