"""ArchivePolicy: which logs are archived, when, and by whom.

Which segments may leave the bookies afterwards is the log's own `tiering`; a policy decides about
runs only. Several policies may choose the same log: a segment is archived once.

Called by the operator, the plugin and `schema`. Source: docs/kubernetes/resources.md
"ArchivePolicy", docs/archive.md.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from duramen.config import Duration
from duramen_operator.resources.clusters import ColdStoreSpec, RunnerKind
from duramen_operator.resources.part import (
    ObjectName,
    Part,
    Requirements,
    Resource,
    ResourceStatus,
    StatusPart,
)

CRON_PATTERN = (
    r"^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|"
    r"[0-9A-Za-z*/,-]+( [0-9A-Za-z*/,?-]+){4})$"
)
NAMESPACE_GLOB_PATTERN = r"^[a-z0-9*?\[\]!-]+$"
LOG_GLOB_PATTERN = r"^[A-Za-z0-9*?._\[\]!-]+$"


class Selector(Part):
    """Which logs."""

    namespace: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            pattern=NAMESPACE_GLOB_PATTERN,
            description="Namespace in Duramen, or a glob such as prod-*.",
        ),
    ] = "*"
    logs: Annotated[
        str,
        Field(
            min_length=1,
            max_length=255,
            pattern=LOG_GLOB_PATTERN,
            description="Log, or a glob such as orders-*. A log whose tiering.policy is none is "
            "only archived when its name and its namespace are written without a wildcard, or when "
            "its retention requires cold copies.",
        ),
    ] = "*"


class ArchivePolicySpec(Part):
    """What is archived, when, and by whom."""

    cluster_name: Annotated[ObjectName, Field(description="The LogCluster whose logs it is about.")]
    selector: Annotated[Selector, Field(description="Which logs. Left out: all of them.")] = (
        Selector()
    )
    schedule: Annotated[
        str | None,
        Field(
            max_length=100,
            pattern=CRON_PATTERN,
            description='When it runs, as cron in UTC, such as "15 * * * *". A missed run is made '
            "up once.",
        ),
    ] = None
    on_closed_segments: Annotated[
        bool,
        Field(strict=True, description="Whether it also runs when segments were closed."),
    ] = False
    format: Annotated[
        Literal["parquet"], Field(description="Form of the files: parquet, the only one so far.")
    ] = "parquet"
    destination: Annotated[
        ColdStoreSpec | None,
        Field(
            description="Where the files go. Left out: the cluster's cold store. For now it is "
            "the same in all that it names (url, claim, secret), since readers look nowhere else."
        ),
    ] = None
    runner: Annotated[
        RunnerKind | None,
        Field(description="Who runs it. Left out: what the cluster's spec.archive.runner says."),
    ] = None
    keep_hot: Annotated[
        Duration,
        Field(description='Only segments that were completed so long ago, such as "1h".'),
    ] = 0
    suspend: Annotated[
        bool, Field(strict=True, description="No new runs; what runs goes on to its end.")
    ] = False
    resources: Annotated[
        Requirements | None,
        Field(description="What the pod of a run asks for. Left out: what the cluster says."),
    ] = None


class ArchiveRunStatus(StatusPart):
    """One run."""

    name: Annotated[str, Field(max_length=253, description="Name of the Job.")] = ""
    cause: Annotated[
        str, Field(max_length=64, description="Schedule, ClosedSegments or MissedSchedule.")
    ] = ""
    started: Annotated[str, Field(max_length=64, description="When it was started.")] = ""
    finished: Annotated[str, Field(max_length=64, description="When it ended; empty: it runs.")] = (
        ""
    )
    result: Annotated[str, Field(max_length=64, description="Running, Succeeded or Failed.")] = ""


class ArchivePolicyStatus(ResourceStatus):
    """What became of the runs."""

    last_scheduled_time: Annotated[
        str, Field(max_length=64, description="Last time of the schedule that was served.")
    ] = ""
    last_run: Annotated[ArchiveRunStatus, Field(description="The newest run.")] = ArchiveRunStatus()
    last_success: Annotated[
        str, Field(max_length=64, description="When a run last ended well.")
    ] = ""
    failed_runs: Annotated[
        int, Field(ge=0, description="Runs that failed since the last one that did not.")
    ] = 0
    closed_segments: Annotated[
        int | None, Field(ge=0, description="Closed segments that the policy is about.")
    ] = None
    lag_segments: Annotated[
        int | None, Field(ge=0, description="Those of them without a verified cold copy.")
    ] = None
    lag_seconds: Annotated[int | None, Field(ge=0, description="Age of the oldest of those.")] = (
        None
    )
    bytes_archived: Annotated[
        int | None, Field(ge=0, description="Bytes that the last run wrote.")
    ] = None
    mismatches: Annotated[
        int | None, Field(ge=0, description="Copies that did not agree with the bookies'.")
    ] = None


class ArchivePolicy(Resource):
    """Archives closed segments of chosen logs, by schedule or as they are closed."""

    kind: Literal["ArchivePolicy"] = "ArchivePolicy"
    spec: ArchivePolicySpec
    status: ArchivePolicyStatus = ArchivePolicyStatus()
