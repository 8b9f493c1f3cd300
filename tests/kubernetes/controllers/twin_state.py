"""What the twin of the admin API knows: namespaces, logs and segments of a cluster without pods.

Judges and answers as the real cluster does, as far as the operator and its tests ask; the same
cases run on both (`test_twin_contract`). Records are counted, not kept. What only time or Spark
does in a real cluster a test does by name: `close_segment`, `archive`, `forget`.

Called by `admin_twin`. Source: docs/protocol/rest.md.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

from duramen.config import LogConfig, NamespaceConfig, parse_log_config, parse_namespace_config
from duramen.config_changes import merge_fields, merge_log_config
from duramen.errors import BeyondTailError, DuramenError
from duramen.texts import PositionKind, format_time, parse_position
from tests.kubernetes.controllers.twin_grants import TwinGrants

UNDELETE_WINDOW_MS: Final = 3_600_000
LEAST_BOOKIES: Final = 3
COPY_DIGITS: Final = "0" * 64

Answer = dict[str, Any]


def now_ms() -> int:
    """Wall-clock time."""
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class TwinSegment:
    """A segment: open until it has a completion time."""

    epoch: int
    start_seq_num: int
    created_ms: int
    record_count: int = 0
    size_bytes: int = 0
    completed_ms: int | None = None
    cold_bytes: int | None = None
    cold_ms: int = 0


@dataclass(slots=True)
class TwinLog:
    """A log; deleted ones stay, under their id."""

    log_id: int
    namespace: str
    name: str
    config: LogConfig
    config_version: int = 1
    head: int = 0
    is_ended: bool = False
    deleted_ms: int | None = None
    segments: list[TwinSegment] = field(default_factory=list)

    @property
    def tail(self) -> int:
        """The number of the next record."""
        return sum(segment.record_count for segment in self.segments)

    def append(self, record_count: int, size_bytes: int) -> int:
        """Count records; gives the first one's number."""
        if self.is_ended:
            raise DuramenError("log_ended", f"{self.namespace}/{self.name} has ended")
        if not self.segments or self.segments[-1].completed_ms is not None:
            self.segments.append(TwinSegment(len(self.segments) + 1, self.tail, now_ms()))
        start = self.tail
        self.segments[-1].record_count += record_count
        self.segments[-1].size_bytes += size_bytes
        return start

    def close_segment(self) -> int | None:
        """Close what is open; gives its epoch."""
        if not self.segments or self.segments[-1].completed_ms is not None:
            return None
        self.segments[-1].completed_ms = now_ms()
        return self.segments[-1].epoch

    def encode_tail(self) -> Answer:
        """The mark behind the last record."""
        epoch = self.segments[-1].epoch if self.segments else 1
        lsn = f"e{epoch}n{self.tail}"
        return {
            "seq_num": self.tail, "timestamp": format_time(now_ms()), "lsn": lsn, "dlsn": f"{lsn}s0"
        }  # fmt: skip

    def encode_head(self) -> Answer:
        """The first live record."""
        return {"seq_num": self.head, "dlsn": f"e1n{self.head}s0"}


class TwinState:
    """A cluster's namespaces and logs.

    Attributes:
        bookies: rows of `/v1/cluster/bookies`; a test changes them at will.
        disruptions: grants of disruption that are outstanding; a test changes them at will.
        lacking: bookies that lack copies of so many segments; others are needed meanwhile.
        grants: as long as `security` is not none.
        security: what its processes run with.
        knows_meant_logs: whether calls may say which log they mean; older processes do not know it.
        rack_count: more racks than a configuration may ask for are `placement_impossible`.
    """

    def __init__(self, rack_count: int = 3) -> None:
        self.namespaces: dict[str, NamespaceConfig] = {}
        self.logs: dict[int, TwinLog] = {}
        self.rack_count = rack_count
        self.bookies: list[Answer] = []
        self.disruptions: list[Answer] = []
        self.lacking: dict[str, int] = {}
        self.grants = TwinGrants()
        self.security = "none"
        self.knows_meant_logs = True
        self._names: dict[tuple[str, str], int] = {}

    # --- Namespaces ------------------------------------------------------------------------------

    def ensure_namespace(self, namespace: str, document: Answer) -> tuple[bool, Answer]:
        """Whether it was created, and the answer."""
        config = parse_namespace_config(document)
        there = self.namespaces.get(namespace)
        if there is not None and there != config:
            raise _other_config(f"namespace {namespace}")
        self.namespaces[namespace] = config
        return there is None, {"namespace": namespace, "config": config.to_json()}

    def show_namespace(self, namespace: str) -> Answer:
        """The namespace with its configuration."""
        return {"namespace": namespace, "config": self._find_namespace(namespace).to_json()}

    def change_namespace(self, namespace: str, patch: Answer) -> Answer:
        """Change the members that `patch` names."""
        parse_namespace_config(patch)
        stored = self._find_namespace(namespace)
        config = parse_namespace_config(merge_fields(stored.to_json(), patch))
        self.namespaces[namespace] = config
        return {
            "namespace": namespace, "config": config.to_json(), "changed": config != stored
        }  # fmt: skip

    def delete_namespace(self, namespace: str) -> Answer:
        """Refused while it has logs; the name of a deleted one counts."""
        if any(key[0] == namespace for key in self._names):
            detail = f"namespace {namespace} has logs: delete them first"
            raise DuramenError("namespace_not_empty", detail, field="namespace")
        is_changed = self.namespaces.pop(namespace, None) is not None
        return {"namespace": namespace, "changed": is_changed}

    def list_namespaces(self, start_after: str, limit: int) -> Answer:
        """A page, sorted by name."""
        names = sorted(name for name in self.namespaces if name > start_after)
        rows = [{"namespace": name} for name in names[:limit]]
        return {"namespaces": rows, "has_more": len(names) > limit}

    def list_logs(self, namespace: str, start_after: str, limit: int) -> Answer:
        """A page, sorted by name."""
        self._find_namespace(namespace)
        names = sorted(
            name
            for (space, name), log_id in self._names.items()
            if space == namespace and name > start_after and self.logs[log_id].deleted_ms is None
        )
        rows = [
            {"namespace": namespace, "name": name, "log_id": str(self._names[namespace, name])}
            for name in names[:limit]
        ]
        return {"logs": rows, "has_more": len(names) > limit}

    # --- Logs ------------------------------------------------------------------------------------

    def ensure_log(self, namespace: str, name: str, document: Answer) -> tuple[bool, Answer]:
        """Whether it was created, and the answer. A deleted log's name is free."""
        config = parse_log_config(document)
        if namespace not in self.namespaces:
            detail = f"create namespace {namespace} first"
            raise DuramenError("namespace_not_found", detail, field="namespace")
        there = self.logs.get(self._names.get((namespace, name), 0))
        is_new = there is None or there.deleted_ms is not None
        if there is None or there.deleted_ms is not None:
            self._check_replication(config)
            there = TwinLog(len(self.logs) + 1, namespace, name, config)
            self.logs[there.log_id] = there
            self._names[namespace, name] = there.log_id
        elif there.config != config:
            raise _other_config(f"log {namespace}/{name}")
        return is_new, self._encode_made(there)

    def show_log(self, namespace: str, name: str) -> Answer:
        """Id, configuration, end and head."""
        log = self.find_log(namespace, name)
        return self._encode_made(log) | {
            "config_version": log.config_version, "ended": log.is_ended, "head": log.encode_head()
        }  # fmt: skip

    def change_log(self, namespace: str, name: str, patch: Answer, version: int | None) -> Answer:
        """Change the members that `patch` names."""
        log = self.find_log(namespace, name)
        if version is not None and version != log.config_version:
            detail = f"the stored configuration has version {log.config_version}"
            raise DuramenError("config_conflict", detail, field="config_version")
        config = parse_log_config(merge_log_config(log.config.to_json(), patch))
        is_changed = config != log.config
        if config.replication != log.config.replication:
            self._check_replication(config)
        if is_changed:
            log.config, log.config_version = config, log.config_version + 1
        return self._encode_made(log) | {
            "config_version": log.config_version, "changed": is_changed
        }  # fmt: skip

    def truncate_log(self, namespace: str, name: str, document: Answer) -> Answer:
        """Truncate everything before a position; by number or `head`, as the operator asks."""
        log = self.find_log(namespace, name)
        to = document.get("to")
        if not isinstance(to, str | int) or isinstance(to, bool):
            detail = 'write the first record to keep, such as {"to": "seq:17"}'
            raise DuramenError("invalid_position", detail, field="to")
        try:
            position = parse_position(str(to))
        except DuramenError as error:
            raise DuramenError(error.code, error.detail, field="to") from None
        number = log.head
        if position.kind is PositionKind.SEQ:
            number = position.number
        elif position.kind is PositionKind.TAIL:
            number = max(log.head, log.tail - position.number)
        if number > log.tail:
            detail = f"seq:{number} is beyond the tail"
            raise BeyondTailError(detail, log.encode_tail(), field="to")
        is_changed = number > log.head
        log.head = max(log.head, number)
        head = {**log.encode_head(), "lsn": f"e1n{log.head}"}
        return {"head": head, "tail": log.encode_tail(), "changed": is_changed}

    def end_log(self, namespace: str, name: str) -> Answer:
        """No append any more."""
        log = self.find_log(namespace, name)
        log.close_segment()
        log.is_ended = True
        return {"log_id": str(log.log_id), "ended": True, "tail": log.encode_tail()}

    def roll_log(self, namespace: str, name: str) -> Answer:
        """Close the open segment."""
        log = self.find_log(namespace, name)
        return {"namespace": namespace, "name": name, "epoch": log.close_segment()}

    def delete_log(self, namespace: str, name: str) -> Answer:
        """Delete it; the name stays until it is purged or given away."""
        log = self.logs.get(self._names.get((namespace, name), 0))
        if log is None:
            log = self.find_log(namespace, name)
        if log.deleted_ms is None:
            log.close_segment()
            log.deleted_ms = now_ms()
        until = format_time(log.deleted_ms + UNDELETE_WINDOW_MS)
        return {"log_id": str(log.log_id), "undelete_until": until}

    def undelete_log(self, namespace: str, name: str) -> Answer:
        """Have a deleted log back."""
        log = self.logs.get(self._names.get((namespace, name), 0))
        if log is None:
            log = self.find_log(namespace, name)
        log.deleted_ms = None
        return self._encode_made(log)

    def check_meant(self, namespace: str, name: str, log_id: int) -> None:
        """See that a name, if it is one, stands for the log that a change means.

        Raises:
            DuramenError: `condition_failed`.
        """
        there = self._names.get((namespace, name), log_id)
        if there != log_id:
            detail = f"{namespace}/{name} is log {there}, not log {log_id}: nothing was changed"
            raise DuramenError("condition_failed", detail, field="log_id")

    def find_log(self, namespace: str, name: str) -> TwinLog:
        """A log that is there.

        Raises:
            DuramenError: `namespace_not_found`, `log_not_found`, `log_deleted`.
        """
        self._find_namespace(namespace)
        log = self.logs.get(self._names.get((namespace, name), 0))
        if log is None:
            detail = f"there is no log {namespace}/{name}"
            raise DuramenError("log_not_found", detail, field="log")
        if log.deleted_ms is not None:
            raise DuramenError("log_deleted", f"{namespace}/{name} was deleted", field="log")
        return log

    def list_segments(self, namespace: str, name: str) -> Answer:
        """The segments, oldest first."""
        log = self.find_log(namespace, name)
        quorum = log.config.replication
        members = [{"bookie": row["id"], "incarnation": row["incarnation"]} for row in self.bookies]
        return {
            "segments": [self._encode_segment(log, row, quorum, members) for row in log.segments]
        }

    def show_standing(self) -> Answer:
        """How the bookies stand: where one lacks copies the others are needed."""
        why = {"code": "too_few_copies", "detail": "fewer than ack_quorum good copies", "count": 1}
        rows = []
        for row in self.bookies:
            name = row["id"]
            is_needed = any(count for one, count in self.lacking.items() if one != name)
            found = {
                "bookie": name,
                "incarnation": row["incarnation"],
                "there": row["state"] != "absent",
                "reasons": [why] if is_needed else [],
                "lacks_count": self.lacking.get(name, 0),
            }
            rows.append(found)
        return {"bookies": rows, "read_unix_ms": 1, "metadata_age_ms": 0}

    def list_bookies(self) -> Answer:
        """Registrations. Each time it is asked, drains go one step on: nothing is named here."""
        steps = {"draining": "leaving", "leaving": "drained"}
        answer = {"bookies": [dict(row) for row in self.bookies]}
        for row in self.bookies:
            if row["state"] != "absent":
                row["duty"] = steps.get(row["duty"], row["duty"])
        return answer

    def list_held(self) -> Answer:
        """What the auditor counted: no copies, of twins."""
        rows = [{"bookie": row["id"], "copies": 0, "bytes": 0} for row in self.bookies]
        return {"bookies": rows}

    def drain_bookie(self, bookie: str) -> Answer:
        """Begin, unless too few would be left for a log of three copies."""
        row = self._find_bookie(bookie)
        left = sum(one["duty"] == "serving" and one is not row for one in self.bookies)
        if row["duty"] == "serving" and left < LEAST_BOOKIES:
            detail = f"without {bookie} {left} bookies take new data, and logs need more"
            raise DuramenError("placement_impossible", detail, field="bookie")
        row["duty"] = "draining" if row["duty"] == "serving" else row["duty"]
        return self._encode_duty(row)

    def cancel_drain(self, bookie: str) -> Answer:
        """Have it serve again, unless somebody may remove it."""
        row = self._find_bookie(bookie)
        if any(one["target"] == f"bookie/{bookie}" for one in self.disruptions):
            raise DuramenError("condition_failed", f"somebody may remove {bookie} now")
        row["duty"] = "serving"
        return self._encode_duty(row)

    def _find_bookie(self, bookie: str) -> Answer:
        found = next((row for row in self.bookies if row["id"] == bookie), None)
        if found is None:
            raise DuramenError("invalid_argument", f"there is no bookie {bookie}", field="bookie")
        return found

    def _encode_duty(self, row: Answer) -> Answer:
        return {"bookie": row["id"], "incarnation": row["incarnation"], "duty": row["duty"]}

    def take_disruption(self, question: Answer) -> Answer:
        """A grant, unless another one is outstanding; asked again it is the same one."""
        target, token = question["target"], question["token"]
        others = [one for one in self.disruptions if one["token"] != token]
        answer: Answer = {
            "target": target, "kind": question["kind"], "allowed": not others, "reasons": [],
            "logs_at_risk": [], "logs_at_risk_count": 0, "read_unix_ms": 1, "metadata_age_ms": 0,
            "grant": None,
        }  # fmt: skip
        if others:
            why = f"{others[0]['holder']} may {others[0]['kind']} {others[0]['target']} now"
            return answer | {"reasons": [{"code": "granted", "detail": why, "count": len(others)}]}
        if question["kind"] == "remove":
            duty = self._find_bookie(target.removeprefix("bookie/"))["duty"]
            if duty != "drained":
                reason = {"code": "not_drained", "detail": f"it is {duty}", "count": 1}
                return answer | {"allowed": False, "reasons": [reason]}
        life_ms = question.get("life_ms", 300_000)
        grant = {
            "token": token, "target": target, "kind": question["kind"],
            "holder": question["holder"], "life_ms": life_ms, "over_in_ms": life_ms + 5_000,
            "granted_unix_ms": now_ms(), "accepts": question.get("accepts", []),
        }  # fmt: skip
        self.disruptions = [grant]
        return answer | {"grant": grant}

    def renew_disruption(self, token: str) -> Answer:
        """The grant, for its whole life again; null: it is over."""
        found = next((one for one in self.disruptions if one["token"] == token), None)
        if found is not None:
            found["over_in_ms"] = found["life_ms"] + 5_000
        return {"grant": found}

    def end_disruption(self, token: str) -> Answer:
        """Whether it was there."""
        left = [one for one in self.disruptions if one["token"] != token]
        is_ended = len(left) < len(self.disruptions)
        self.disruptions = left
        return {"token": token, "ended": is_ended}

    # --- Grants ----------------------------------------------------------------------------------

    def show_grants(self, scope: str) -> Answer:
        """The grants within a scope."""
        return self._find_grants().show(scope)

    def replace_grants(self, scope: str, version: int, body: Answer) -> Answer:
        """Have those of the body within the scope, and no others."""
        return self._find_grants().replace(scope, version, body["grants"])

    def _find_grants(self) -> TwinGrants:
        if self.security == "none":
            detail = "nobody is known here until this has --security migrate or on"
            raise DuramenError("forbidden", detail)
        return self.grants

    # --- What a test does ------------------------------------------------------------------------

    def archive(self, log: TwinLog) -> int:
        """Mark every closed segment as archived; gives how many were not before."""
        waiting = [row for row in log.segments if row.completed_ms and row.cold_bytes is None]
        for row in waiting:
            row.cold_bytes, row.cold_ms = row.size_bytes, now_ms()
        return len(waiting)

    def forget(self, log: TwinLog) -> None:
        """Purge a deleted log: its name is free, its namespace may go."""
        if self._names.get((log.namespace, log.name)) == log.log_id:
            del self._names[log.namespace, log.name]

    # --- Parts -----------------------------------------------------------------------------------

    def _find_namespace(self, namespace: str) -> NamespaceConfig:
        found = self.namespaces.get(namespace)
        if found is None:
            detail = f"there is no namespace {namespace}"
            raise DuramenError("namespace_not_found", detail, field="namespace")
        return found

    def _check_replication(self, config: LogConfig) -> None:
        if config.is_flexible:
            return
        wanted = config.striped
        if wanted.placement == "strict" and wanted.min_racks > self.rack_count:
            detail = f"min_racks {wanted.min_racks}: the cluster has {self.rack_count} racks"
            raise DuramenError("placement_impossible", detail, field="replication")

    def _encode_made(self, log: TwinLog) -> Answer:
        return {
            "namespace": log.namespace, "name": log.name, "log_id": str(log.log_id),
            "config": log.config.to_json(),
        }  # fmt: skip

    def _encode_segment(
        self, log: TwinLog, row: TwinSegment, quorum: Any, members: list[Answer]
    ) -> Answer:
        is_closed = row.completed_ms is not None
        end = row.start_seq_num + row.record_count
        status, active = "LIVE", f"e{row.epoch}n0s0"
        if log.head >= end and is_closed:
            status, active = "TRUNCATED", ""
        elif log.head > row.start_seq_num:
            status, active = "PARTIALLY_TRUNCATED", f"e{row.epoch}n{log.head}s0"
        cold_copy = None
        if row.cold_bytes is not None:
            cold_copy = {
                "attempt": COPY_DIGITS[:32], "manifest_sha256": COPY_DIGITS,
                "bytes": row.cold_bytes, "verified": format_time(row.cold_ms), "rechecked": None,
            }  # fmt: skip
        return {
            "epoch": row.epoch,
            "ledger_id": str((log.log_id << 32) + row.epoch),
            "state": "CLOSED" if is_closed else "OPEN",
            "status": status,
            "min_active_dlsn": active or None,
            "first_entry": 0,
            "last_entry": row.record_count - 1 if is_closed else None,
            "lost": [],
            "start_seq_num": row.start_seq_num,
            "records": row.record_count if is_closed else None,
            "bytes": row.size_bytes if is_closed else None,
            "first_txid": None,
            "last_txid": None,
            "first_timestamp": format_time(row.created_ms) if is_closed else None,
            "last_timestamp": None if row.completed_ms is None else format_time(row.completed_ms),
            "created": format_time(row.created_ms),
            "completed": None if row.completed_ms is None else format_time(row.completed_ms),
            "cold_copy": cold_copy,
            "hot_copies": "kept",
            "ensemble_size": quorum.ensemble_size,
            "write_quorum": quorum.write_quorum,
            "ack_quorum": quorum.ack_quorum,
            "fragments": [{"first_entry": 0, "ensemble": members[: quorum.ensemble_size]}],
        }


def make_bookie(name: str, region: str, rack: str) -> Answer:
    """A row of `/v1/cluster/bookies` that takes data."""
    return {
        "id": name, "incarnation": f"{name}-1", "region": region, "rack": rack, "state": "rw",
        "duty": "serving", "weight": 1.0, "free_bytes": 1 << 30, "doubtful": False,
        "takes_new_data": True, "steady_in_s": 0,
    }  # fmt: skip


def _other_config(what: str) -> DuramenError:
    detail = f"{what} exists with another configuration, which a PUT does not change"
    return DuramenError("log_exists_with_other_config", detail)
