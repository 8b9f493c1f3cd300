"""The manifest of an archived segment: which files hold it, and everything to check them by.

It is written once, put-if-absent, after its files were read back; what it says never changes. So it
is encoded in one way only and read strictly: a manifest whose numbers do not fit together is none.
Fields that are not known here are passed over (a newer job may add some); another `v` is refused.

Not here: where it lies (`paths`). Called by the archive job, cold reads, verify, compaction and the
data source. Source: docs/protocol/archive.md "Manifest, versions 1 and 2".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from duramen.core.segment import Totals
from duramen.ids import LAST_EPOCH, LAST_LOG_ID, NOTHING, EntryId, Epoch, LedgerId, LogId, ledger_of
from duramen.wire.cold.chain import Chain
from duramen.wire.cold.paths import PART_COUNT_MAX, attempt_folder, shared_folder

MANIFEST_VERSION: Final = 1

SHARED_VERSION: Final = 2
"""Of a manifest that names files of several segments, which readers of version 1 would misread."""

_HEX_64 = re.compile(r"[0-9a-f]{64}")
_ATTEMPT = re.compile(r"[0-9a-f]{32}")
_PART_NAME = re.compile(r"part-[0-9]{5}\.parquet")
Ranges = tuple[tuple[EntryId, EntryId], ...]


class ManifestError(ValueError):
    """The bytes are no manifest, or one whose numbers do not fit together."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of a file: whole entries, ascending, of one epoch.

    Attributes:
        offset, size_bytes: where its bytes lie in the file; groups follow one another.
        sha256: of these bytes, 64 hex digits.
        row_count: one a record and one a control entry.
        totals_before: of the segment up to before its first entry: what `rebuild` starts from.
        totals_after: up to and with its last entry. Sequence numbers run without a gap from
            start + `totals_before.record_count` to before start + `totals_after.record_count`.
    """

    offset: int
    size_bytes: int
    sha256: str
    row_count: int
    entry_count: int
    first_entry: EntryId
    last_entry: EntryId
    totals_before: Totals
    totals_after: Totals


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file that has row groups of other segments too: which ones are this segment's.

    Attributes:
        first_group: index of the segment's first row group in the file.
        group_count: row groups of the file.
        footer_offset: where the last row group of the file ends.
    """

    first_group: int
    group_count: int
    footer_offset: int


@dataclass(frozen=True, slots=True)
class FilePart:
    """One file of the attempt, as far as it is the segment's.

    Attributes:
        name: within the attempt's folder, or among its shared files.
        size_bytes, sha256: of the file, with all that is in it.
        footer_sha256: of what follows the last row group up to the end of the file.
        row_groups: the segment's; they follow one another.
        identities, records: sums over its entries (`chain`).
        shared: None: the file is the segment's alone.
    """

    name: str
    size_bytes: int
    sha256: str
    footer_sha256: str
    row_groups: tuple[RowGroup, ...]
    identities: Chain
    records: Chain
    shared: SharedFile | None = None

    @property
    def first_entry(self) -> EntryId:
        """The first entry that it holds."""
        return self.row_groups[0].first_entry

    @property
    def last_entry(self) -> EntryId:
        """The last entry that it holds."""
        return self.row_groups[-1].last_entry

    @property
    def entry_count(self) -> int:
        """Entries that it holds."""
        return sum(group.entry_count for group in self.row_groups)

    @property
    def row_count(self) -> int:
        """Rows that it holds."""
        return sum(group.row_count for group in self.row_groups)

    @property
    def first_group(self) -> int:
        """Index of the first row group in the file."""
        return 0 if self.shared is None else self.shared.first_group

    @property
    def group_count(self) -> int:
        """Row groups of the file, those of other segments too."""
        return len(self.row_groups) if self.shared is None else self.shared.group_count

    @property
    def own_bytes(self) -> int:
        """Of the file, or of the segment's row groups where others share it."""
        if self.shared is None:
            return self.size_bytes
        return sum(group.size_bytes for group in self.row_groups)

    @property
    def footer_offset(self) -> int:
        """Where the last row group of the file ends."""
        if self.shared is not None:
            return self.shared.footer_offset
        return self.row_groups[-1].offset + self.row_groups[-1].size_bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """A segment in the archive.

    Attributes:
        cluster: the cluster's uuid.
        namespace, log: the log's names when it was archived.
        attempt: whose folder has the files; 32 hex digits.
        last_entry: of the segment; `NOTHING` of an empty one, which has no files.
        totals: of the whole segment, as its node says.
        holes, lost: entries that are not there, as the segment's node said.
        history: what happened to the segment before, as JSON says it: times, fragments, the job.
    """

    cluster: str
    namespace: str
    log: str
    log_id: LogId
    epoch: Epoch
    attempt: str
    start_seq_num: int
    last_entry: EntryId
    totals: Totals
    files: tuple[FilePart, ...]
    holes: Ranges = ()
    lost: Ranges = ()
    archived_unix_ms: int = 0
    history: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger that the segment is."""
        return ledger_of(self.log_id, self.epoch)

    @property
    def size_bytes(self) -> int:
        """Of all files; of shared ones, what is the segment's."""
        return sum(part.own_bytes for part in self.files)

    @property
    def is_shared(self) -> bool:
        """Whether compaction made it: its files have other segments too."""
        return any(part.shared is not None for part in self.files)

    @property
    def entry_count(self) -> int:
        """Entries of all files."""
        return sum(part.entry_count for part in self.files)

    @property
    def row_count(self) -> int:
        """Rows of all files: records and control entries."""
        return sum(part.row_count for part in self.files)

    @property
    def missing_record_count(self) -> int:
        """Records of the segment that are in none of its entries: of holes and losses."""
        groups = [group for part in self.files for group in part.row_groups]
        return self.totals.record_count - sum(
            group.totals_after.record_count - group.totals_before.record_count for group in groups
        )

    @property
    def identities(self) -> Chain:
        """The identity chain of all entries."""
        return _sum_up(part.identities for part in self.files)

    @property
    def records(self) -> Chain:
        """The records' digest of all entries."""
        return _sum_up(part.records for part in self.files)

    def path_of(self, part: FilePart) -> str:
        """Where one of its files lies, relative to the store's root."""
        if part.shared is not None:
            return shared_folder(self.cluster, self.log_id, self.attempt) + part.name
        folder = attempt_folder(self.cluster, self.log_id, self.epoch, self.attempt)
        return folder + part.name


def _sum_up(chains: Iterable[Chain]) -> Chain:
    total = Chain()
    for chain in chains:
        total = total.plus(chain)
    return total


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest: JSON, sorted keys, one spelling of a value."""
    _check_manifest(manifest)
    ends = _find_ends(manifest)
    document = {
        "v": SHARED_VERSION if manifest.is_shared else MANIFEST_VERSION,
        "cluster": manifest.cluster,
        "namespace": manifest.namespace,
        "log": manifest.log,
        "log_id": str(manifest.log_id),
        "epoch": manifest.epoch,
        "attempt": manifest.attempt,
        "start_seq_num": manifest.start_seq_num,
        "last_entry": manifest.last_entry,
        "totals": _encode_totals(manifest.totals),
        "holes": [list(pair) for pair in manifest.holes],
        "lost": [list(pair) for pair in manifest.lost],
        "entries": manifest.entry_count,
        "rows": manifest.row_count,
        **ends,
        "identities": manifest.identities.format(),
        "records": manifest.records.format(),
        "files": [_encode_file(part) for part in manifest.files],
        "archived_unix_ms": manifest.archived_unix_ms,
        "history": dict(manifest.history),
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _find_ends(manifest: Manifest) -> dict[str, Any]:
    """First and last DLSN (of records, up to the entry where only entries are known)."""
    if not manifest.files:
        return {"first_lsn": None, "last_lsn": None, "first_seq_num": None, "next_seq_num": None}
    first, last = manifest.files[0], manifest.files[-1]
    start = manifest.start_seq_num
    return {
        "first_lsn": f"e{manifest.epoch}n{first.first_entry}",
        "last_lsn": f"e{manifest.epoch}n{last.last_entry}",
        "first_seq_num": start + first.row_groups[0].totals_before.record_count,
        "next_seq_num": start + last.row_groups[-1].totals_after.record_count,
    }


def read_manifest(data: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        ManifestError: no manifest, of a version that is newer than this code, or one that
            contradicts itself.
    """
    try:
        document = json.loads(data)
        if not isinstance(document, dict):
            raise ManifestError("a manifest is a JSON object")
        version = _whole(document["v"])
        if version not in (MANIFEST_VERSION, SHARED_VERSION):
            raise ManifestError(f"a manifest of version {version}, which is not known here")
        manifest = _read_document(document)
        if manifest.is_shared != (version == SHARED_VERSION):
            raise ManifestError(f"files of another version than {version}")
        expected = {
            "entries": manifest.entry_count,
            "rows": manifest.row_count,
            "identities": manifest.identities.format(),
            "records": manifest.records.format(),
            **_find_ends(manifest),
        }
        for name, value in expected.items():
            if document[name] != value or type(document[name]) is not type(value):
                raise ManifestError(f"{name} is not what its files add up to")
    except (KeyError, TypeError, ValueError, AssertionError, RecursionError) as error:
        if isinstance(error, ManifestError):
            raise
        raise ManifestError(f"this is no manifest: {error!r}") from error
    return manifest


def _read_document(document: Mapping[str, Any]) -> Manifest:
    last_entry = document["last_entry"]
    history = document["history"]
    if not isinstance(history, dict):
        raise ManifestError("the history is a JSON object")
    manifest = Manifest(
        cluster=_text(document["cluster"]),
        namespace=_text(document["namespace"]),
        log=_text(document["log"]),
        log_id=LogId(int(_match(document["log_id"], re.compile(r"[0-9]{1,10}")))),
        epoch=Epoch(_whole(document["epoch"])),
        attempt=_match(document["attempt"], _ATTEMPT),
        start_seq_num=_whole(document["start_seq_num"]),
        last_entry=NOTHING if last_entry == NOTHING else EntryId(_whole(last_entry)),
        totals=_read_totals(document["totals"]),
        files=tuple(_read_file(item) for item in document["files"]),
        holes=_read_ranges(document["holes"]),
        lost=_read_ranges(document["lost"]),
        archived_unix_ms=_whole(document["archived_unix_ms"]),
        history=history,
    )
    _check_manifest(manifest)
    return manifest


def _check_manifest(manifest: Manifest) -> None:
    """What must hold of every manifest, be it made here or read.

    Raises:
        ManifestError: it does not.
    """
    if not (0 < manifest.log_id <= LAST_LOG_ID and 0 < manifest.epoch <= LAST_EPOCH):
        raise ManifestError("log id or epoch out of range")
    if len(manifest.files) > PART_COUNT_MAX:
        raise ManifestError("more files than an attempt may have")
    groups = [group for part in manifest.files for group in part.row_groups]
    for part in manifest.files:
        _check_file(part)
    names = [part.name for part in manifest.files]
    # Numbers need not be without a gap (compaction joins), but their order is the entries'.
    if any(one >= two for one, two in pairwise(names)):
        raise ManifestError("files are not in the order of their names")
    for one, two in pairwise(groups):
        if one.last_entry >= two.first_entry:
            raise ManifestError("row groups do not rise")
        if one.totals_after.record_count > two.totals_before.record_count:
            raise ManifestError("sequence numbers do not rise")
    absent = sorted((*manifest.holes, *manifest.lost))
    if any(first > last for first, last in absent) or any(
        one[1] >= two[0] for one, two in pairwise(absent)
    ):
        raise ManifestError("holes and lost ranges overlap")
    absent_count = sum(last - first + 1 for first, last in absent)
    if manifest.entry_count + absent_count != manifest.last_entry + 1:
        raise ManifestError("entries, holes and lost ranges are not all of the segment")
    if groups and groups[-1].last_entry > manifest.last_entry:
        raise ManifestError("entries behind the segment's end")
    if absent and not 0 <= absent[0][0] <= absent[-1][1] <= manifest.last_entry:
        raise ManifestError("holes or lost ranges outside of the segment")


def _check_file(part: FilePart) -> None:
    if not part.row_groups:
        raise ManifestError(f"{part.name} has no row group")
    at = part.row_groups[0].offset
    for group in part.row_groups:
        # A control entry is a row and no record, so rows are at least the records.
        records = group.totals_after.record_count - group.totals_before.record_count
        if group.offset != at or group.size_bytes <= 0:
            raise ManifestError(f"row groups of {part.name} do not follow one another")
        if not 0 < group.entry_count <= group.last_entry - group.first_entry + 1:
            raise ManifestError(f"a row group of {part.name} counts other entries than it spans")
        if not 0 <= records <= group.row_count or group.row_count < group.entry_count:
            raise ManifestError(f"a row group of {part.name} counts other rows than records")
        at += group.size_bytes
    if part.shared is not None:
        _check_shared(part, part.shared, at)
    if part.footer_offset >= part.size_bytes:
        raise ManifestError(f"{part.name} has no footer")
    if part.identities.count != part.entry_count or part.records.count != part.entry_count:
        raise ManifestError(f"sums of {part.name} are over other entries")


def _check_shared(part: FilePart, shared: SharedFile, end: int) -> None:
    """Args: end: where the segment's last row group ends."""
    if shared.first_group + len(part.row_groups) > shared.group_count:
        raise ManifestError(f"{part.name} has fewer row groups than its part")
    if end > shared.footer_offset:
        raise ManifestError(f"the footer of {part.name} begins within a row group")


def _encode_file(part: FilePart) -> dict[str, Any]:
    return {
        "name": part.name,
        "size_bytes": part.size_bytes,
        "sha256": part.sha256,
        "footer_sha256": part.footer_sha256,
        "identities": part.identities.format(),
        "records": part.records.format(),
        "row_groups": [
            {
                "offset": group.offset,
                "size_bytes": group.size_bytes,
                "sha256": group.sha256,
                "rows": group.row_count,
                "entries": group.entry_count,
                "first_entry": group.first_entry,
                "last_entry": group.last_entry,
                "totals_before": _encode_totals(group.totals_before),
                "totals_after": _encode_totals(group.totals_after),
            }
            for group in part.row_groups
        ],
        **({} if part.shared is None else {"shared": _encode_shared(part.shared)}),
    }


def _encode_shared(shared: SharedFile) -> dict[str, Any]:
    return {
        "first_group": shared.first_group,
        "groups": shared.group_count,
        "footer_offset": shared.footer_offset,
    }


def _read_file(item: Mapping[str, Any]) -> FilePart:
    groups = tuple(_read_group(group) for group in item["row_groups"])
    count = sum(group.entry_count for group in groups)
    return FilePart(
        name=_match(item["name"], _PART_NAME),
        size_bytes=_whole(item["size_bytes"]),
        sha256=_match(item["sha256"], _HEX_64),
        footer_sha256=_match(item["footer_sha256"], _HEX_64),
        row_groups=groups,
        identities=Chain(count, int(_match(item["identities"], _HEX_64), 16)),
        records=Chain(count, int(_match(item["records"], _HEX_64), 16)),
        shared=_read_shared(item["shared"]) if "shared" in item else None,
    )


def _read_shared(item: Mapping[str, Any]) -> SharedFile:
    return SharedFile(
        first_group=_whole(item["first_group"]),
        group_count=_whole(item["groups"]),
        footer_offset=_whole(item["footer_offset"]),
    )


def _read_group(item: Mapping[str, Any]) -> RowGroup:
    return RowGroup(
        offset=_whole(item["offset"]),
        size_bytes=_whole(item["size_bytes"]),
        sha256=_match(item["sha256"], _HEX_64),
        row_count=_whole(item["rows"]),
        entry_count=_whole(item["entries"]),
        first_entry=EntryId(_whole(item["first_entry"])),
        last_entry=EntryId(_whole(item["last_entry"])),
        totals_before=_read_totals(item["totals_before"]),
        totals_after=_read_totals(item["totals_after"]),
    )


def _encode_totals(totals: Totals) -> dict[str, Any]:
    return {
        "records": totals.record_count,
        "bytes": totals.length_bytes,
        "max_txid": totals.max_txid,
        "max_timestamp_ms": totals.max_timestamp_ms,
    }


def _read_totals(item: Mapping[str, Any]) -> Totals:
    return Totals(
        _whole(item["records"]),
        _whole(item["bytes"]),
        _number_or_none(item["max_txid"]),
        _number_or_none(item["max_timestamp_ms"]),
    )


def _read_ranges(items: list[Any]) -> Ranges:
    return tuple((EntryId(_whole(first)), EntryId(_whole(last))) for first, last in items)


def _checked(kind: type, test: Callable[[Any], bool], value: object, text: str) -> Any:
    if type(value) is not kind or not test(value):
        raise ManifestError(f"{value!r} is no {text}")
    return value


def _whole(value: object) -> int:
    number: int = _checked(int, lambda one: one >= 0, value, "whole number ≥ 0")
    return number


def _number_or_none(value: object) -> int | None:
    if value is None:
        return None
    number: int = _checked(int, lambda one: -(1 << 63) <= one < 1 << 63, value, "number")
    return number


def _text(value: object) -> str:
    text: str = _checked(str, lambda one: len(one) <= 1024, value, "text")
    return text


def _match(value: object, pattern: re.Pattern[str]) -> str:
    text = _text(value)
    if not pattern.fullmatch(text):
        raise ManifestError(f"{text!r} is not of the form {pattern.pattern}")
    return text
