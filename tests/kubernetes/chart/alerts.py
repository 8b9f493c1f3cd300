"""One case an alert: series with which it fires, what it says then, and when it is quiet.

Series are in promtool's notation, one sample a minute: `0+1x60` begins at 0 and grows by 1, sixty
times. The quiet series are near misses: a value at the bound, a cluster whose trouble is over, a
count that grows for a reason that is no trouble. Read by `test_alerts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.kubernetes.chart.rendering import CHART

RULES = CHART / "rules" / "duramen.yaml"


@dataclass(frozen=True)
class Case:
    """An alert, and what makes it fire and what does not."""

    alert: str
    fires: Mapping[str, str]
    at: str
    labels: Mapping[str, str]
    summary: str
    quiet: Mapping[str, str]

    def format(self, rule: Mapping[str, Any]) -> list[dict[str, Any]]:
        """As two tests of promtool. The rule gives the texts that have nothing to fill in."""
        expected = {
            "exp_labels": {**rule["labels"], **self.labels},
            "exp_annotations": {**rule["annotations"], "summary": self.summary},
        }
        return [self._format(self.fires, [expected]), self._format(self.quiet, [])]

    def _format(self, series: Mapping[str, str], expected: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "interval": "1m",
            "input_series": [{"series": name, "values": text} for name, text in series.items()],
            "alert_rule_test": [
                {"eval_time": self.at, "alertname": self.alert, "exp_alerts": expected}
            ],
        }


CLUSTER = {"namespace": "shop", "duramen_cluster": "main"}
BOOKIE = {**CLUSTER, "pod": "main-0"}
OPERATED = {"namespace": "shop", "cluster": "main"}


def series(name: str, **labels: str) -> str:
    """A series of the cluster `main`."""
    pairs = ", ".join(f'{key}="{value}"' for key, value in {**CLUSTER, **labels}.items())
    return f"{name}{{{pairs}}}"


def of_sequencer(name: str, number: int = 0, **labels: str) -> str:
    """A series of one of its sequencers."""
    return series(name, pod=f"main-sequencer-{number}", **labels)


def of_bookie(name: str, **labels: str) -> str:
    """A series of one of its bookies."""
    return series(name, pod="main-0", **labels)


def of_operator(name: str, **labels: str) -> str:
    """A series of the operator about it."""
    pairs = ", ".join(f'{key}="{value}"' for key, value in {**OPERATED, **labels}.items())
    return f"{name}{{{pairs}}}"


DATA = [
    Case(
        "DuramenUnrepairable",
        {
            of_sequencer("duramen_repair_unrepairable_fragments"): "3x20",
            of_sequencer("duramen_repair_unrepairable_fragments", 1): "0x20",
        },
        "11m",
        CLUSTER,
        "3 fragments of main cannot be repaired",
        {of_sequencer("duramen_repair_unrepairable_fragments"): "3x8 0x12"},
    ),
    Case(
        "DuramenRepairStalled",
        {
            of_sequencer("duramen_repair_backlog_fragments"): "7x90",
            of_sequencer("duramen_repair_copied_bytes_total"): "4096x90",
        },
        "65m",
        CLUSTER,
        "7 fragments of main wait for repair and none is copied",
        {
            of_sequencer("duramen_repair_backlog_fragments"): "7x90",
            of_sequencer("duramen_repair_copied_bytes_total"): "0+1024x90",
        },
    ),
    Case(
        "DuramenPlacementViolated",
        {of_sequencer("duramen_placement_violations"): "2x90"},
        "61m",
        CLUSTER,
        "2 fragments of main break their placement rule",
        {of_sequencer("duramen_placement_violations"): "2x50 0x40"},
    ),
    Case(
        "DuramenNoAuditor",
        {
            of_sequencer("duramen_repair_is_auditor"): "1 0x20",
            of_sequencer("duramen_repair_is_auditor", 1): "0x21",
        },
        "12m",
        CLUSTER,
        "no sequencer of main is the auditor",
        {
            of_sequencer("duramen_repair_is_auditor"): "1 0x20",
            of_sequencer("duramen_repair_is_auditor", 1): "0x3 1x18",
        },
    ),
    Case(
        "DuramenAuditsIncomplete",
        {
            of_sequencer("duramen_repair_is_auditor"): "1x300",
            of_sequencer("duramen_repair_rounds_total", outcome="whole"): "5x300",
            of_sequencer("duramen_repair_rounds_total", outcome="in part"): "0+1x300",
        },
        "250m",
        CLUSTER,
        "no audit of main was whole for hours",
        {
            of_sequencer("duramen_repair_is_auditor"): "1x300",
            of_sequencer("duramen_repair_rounds_total", outcome="whole"): "0+1x300",
        },
    ),
    Case(
        "DuramenDamagedCopiesRead",
        {series("duramen_readproxy_damaged_answers_total", pod="r-0"): "0x10 1x20"},
        "20m",
        CLUSTER,
        "bookies of main answered with damaged entries",
        {series("duramen_readproxy_damaged_answers_total", pod="r-0"): "4x40"},
    ),
    Case(
        "DuramenDamageNotReported",
        {of_bookie("duramen_bookie_repair_queue_ledgers"): "2x90"},
        "61m",
        BOOKIE,
        "bookie main-0 has 2 damaged ledgers that it could not report",
        {of_bookie("duramen_bookie_repair_queue_ledgers"): "2x30 0x60"},
    ),
]
BOOKIES = [
    Case(
        "DuramenDiskFilling",
        {of_bookie("duramen_bookie_disk_used_ratio"): "0.87x30"},
        "16m",
        BOOKIE,
        "a disk of bookie main-0 is 87% full",
        {of_bookie("duramen_bookie_disk_used_ratio"): "0.85x30"},
    ),
    Case(
        "DuramenDiskFull",
        {of_bookie("duramen_bookie_disk_used_ratio"): "0.94x5"},
        "2m",
        BOOKIE,
        "a disk of bookie main-0 is 94% full",
        {of_bookie("duramen_bookie_disk_used_ratio"): "0.93x5"},
    ),
    Case(
        "DuramenJournalSlow",
        {
            of_bookie("duramen_bookie_journal_sync_seconds_bucket", le="0.1"): "0+90x30",
            of_bookie("duramen_bookie_journal_sync_seconds_bucket", le="0.5"): "0+100x30",
            of_bookie("duramen_bookie_journal_sync_seconds_bucket", le="+Inf"): "0+100x30",
        },
        "25m",
        BOOKIE,
        "1 % of journal syncs of bookie main-0 take 460ms or more",
        {
            of_bookie("duramen_bookie_journal_sync_seconds_bucket", le="0.1"): "0+999x30",
            of_bookie("duramen_bookie_journal_sync_seconds_bucket", le="0.5"): "0+1000x30",
            of_bookie("duramen_bookie_journal_sync_seconds_bucket", le="+Inf"): "0+1000x30",
        },
    ),
    Case(
        "DuramenJournalNotSettling",
        {of_bookie("duramen_bookie_journal_sealed_files"): "40x60"},
        "31m",
        BOOKIE,
        "40 journal files of bookie main-0 wait to be settled",
        {of_bookie("duramen_bookie_journal_sealed_files"): "40x20 2 40x39"},
    ),
    Case(
        "DuramenBookieRefusing",
        {of_bookie("duramen_bookie_class_refusals_total", **{"class": "append"}): "0+120x30"},
        "20m",
        BOOKIE,
        "bookie main-0 refuses 2 requests a second",
        {of_bookie("duramen_bookie_class_refusals_total", **{"class": "append"}): "0+60x30"},
    ),
]
TRAFFIC = [
    Case(
        "DuramenAppendsFailing",
        {
            series("duramen_writeproxy_appends_total", outcome="ok"): "0+90x20",
            series("duramen_writeproxy_appends_total", outcome="not_enough_bookies"): "0+10x20",
        },
        "15m",
        CLUSTER,
        "10% of the appends to main fail",
        {
            series("duramen_writeproxy_appends_total", outcome="ok"): "0+90x20",
            series("duramen_writeproxy_appends_total", outcome="condition_failed"): "0+10x20",
        },
    ),
    Case(
        "DuramenAppendsSlow",
        {
            series("duramen_writeproxy_append_seconds_bucket", le="1"): "0+90x30",
            series("duramen_writeproxy_append_seconds_bucket", le="2"): "0+100x30",
            series("duramen_writeproxy_append_seconds_bucket", le="+Inf"): "0+100x30",
        },
        "20m",
        CLUSTER,
        "1 % of the appends to main take 1.9s or more",
        {
            series("duramen_writeproxy_append_seconds_bucket", le="1"): "0+100x30",
            series("duramen_writeproxy_append_seconds_bucket", le="2"): "0+100x30",
            series("duramen_writeproxy_append_seconds_bucket", le="+Inf"): "0+100x30",
        },
    ),
    Case(
        "DuramenReadsFailing",
        {
            series("duramen_readproxy_requests_total", outcome="ok"): "0+90x20",
            series("duramen_readproxy_requests_total", outcome="data_unavailable"): "0+10x20",
        },
        "15m",
        CLUSTER,
        "10% of the reads from main fail",
        {
            series("duramen_readproxy_requests_total", outcome="ok"): "0+90x20",
            series("duramen_readproxy_requests_total", outcome="beyond_tail"): "0+10x20",
        },
    ),
    Case(
        "DuramenReadsSlow",
        {
            series("duramen_readproxy_request_seconds_bucket", le="2"): "0+90x30",
            series("duramen_readproxy_request_seconds_bucket", le="5"): "0+100x30",
            series("duramen_readproxy_request_seconds_bucket", le="+Inf"): "0+100x30",
        },
        "20m",
        CLUSTER,
        "1 % of the reads from main take 4.7s or more",
        {
            series("duramen_readproxy_request_seconds_bucket", le="2"): "0+100x30",
            series("duramen_readproxy_request_seconds_bucket", le="5"): "0+100x30",
            series("duramen_readproxy_request_seconds_bucket", le="+Inf"): "0+100x30",
        },
    ),
    Case(
        "DuramenInvariantBroken",
        {series("duramen_sequencer_broken_invariants_total", pod="s-0"): "0x5 1x20"},
        "10m",
        CLUSTER,
        "a check inside a sequencer of main failed",
        {series("duramen_sequencer_broken_invariants_total", pod="s-0"): "1x20"},
    ),
    Case(
        "DuramenLogTooHot",
        {of_sequencer("duramen_sequencer_hot_log", log="shop/orders", reason="cpu"): "1x20"},
        "10m",
        {**CLUSTER, "log": "shop/orders", "reason": "cpu"},
        "shop/orders of main is more than its owner can carry (cpu)",
        {
            # It cools down, and is then not told any more; another was hot for a moment.
            of_sequencer("duramen_sequencer_hot_log", log="shop/a", reason="cpu"): "1x3 _x20",
            of_sequencer("duramen_sequencer_hot_log", log="shop/b", reason="window"): "_x8 1x4",
        },
    ),
    Case(
        "DuramenColdStoreFailing",
        {series("duramen_readproxy_cold_failures_total", pod="r-0"): "0+1x40"},
        "25m",
        CLUSTER,
        "the cold store of main fails reads",
        {series("duramen_readproxy_cold_failures_total", pod="r-0"): "0 1x40"},
    ),
    Case(
        "DuramenColdCopiesDamaged",
        {series("duramen_readproxy_cold_damaged_total", pod="r-0"): "0x5 1x20"},
        "10m",
        CLUSTER,
        "archived segments of main are damaged",
        {series("duramen_readproxy_cold_damaged_total", pod="r-0"): "1x20"},
    ),
    Case(
        "DuramenArchiveLags",
        {of_operator("duramen_operator_archive_lag_seconds", policy="all"): "172860x40"},
        "31m",
        {**OPERATED, "policy": "all"},
        "segments that ArchivePolicy all chose wait since 2d 0h 1m 0s",
        {of_operator("duramen_operator_archive_lag_seconds", policy="all"): "172800x40"},
    ),
    Case(
        "DuramenArchiveMismatch",
        {of_operator("duramen_operator_archive_mismatches", policy="all"): "0x5 3x10"},
        "10m",
        {**OPERATED, "policy": "all"},
        "3 copies that the last run of ArchivePolicy all read do not agree",
        {of_operator("duramen_operator_archive_mismatches", policy="all"): "3x5 0x10"},
    ),
]
SECURITY = [
    Case(
        "DuramenIdentityEnds",
        {of_bookie("duramen_identity_expires_seconds", issuer="5a"): "99000-60x30"},
        "20m",
        BOOKIE,
        "the certificate of main-0 ends in 1d 3h 10m 0s",
        {of_bookie("duramen_identity_expires_seconds", issuer="5a"): "120000-60x30"},
    ),
    Case(
        "DuramenPublicCertificateEnds",
        {series("duramen_public_certificate_expires_seconds", pod="w-0", serial="7"): "600-60x30"},
        "20m",
        {**CLUSTER, "pod": "w-0"},
        "the public port's certificate of w-0 ends in -10m 0s",
        {series("duramen_public_certificate_expires_seconds", pod="w-0", serial="7"): "100800x30"},
    ),
    Case(
        "DuramenCertificateNotRenewed",
        {
            of_operator(
                "duramen_operator_certificate_expires_seconds", role="zookeeper"
            ): "99000-60x30"
        },
        "20m",
        {**OPERATED, "role": "zookeeper"},
        "a certificate of the zookeeper of main ends in 1d 3h 10m 0s",
        {
            of_operator(
                "duramen_operator_certificate_expires_seconds", role="zookeeper"
            ): "120000-60x30"
        },
    ),
    Case(
        "DuramenCallersRefused",
        {of_bookie("duramen_callers_refused_total", why="unknown"): "0+120x30"},
        "20m",
        BOOKIE,
        "main-0 refuses 2 calls a second for who calls",
        {of_bookie("duramen_callers_refused_total", why="unknown"): "0+60x30"},
    ),
]
PROCESSES = [
    Case(
        "DuramenServerDown",
        {series("up", job="duramen", component="sequencer", pod="main-sequencer-1"): "0x10"},
        "6m",
        {**CLUSTER, "job": "duramen", "component": "sequencer", "pod": "main-sequencer-1"},
        "sequencer main-sequencer-1 does not answer",
        {series("up", job="duramen", component="sequencer", pod="main-sequencer-1"): "0x4 1x6"},
    ),
    Case(
        "DuramenBookiesMissing",
        {
            series("up", job="duramen", component="bookie", pod="main-0"): "1x10",
            series("up", job="duramen", component="bookie", pod="main-1"): "1x10",
            series("up", job="duramen", component="bookie", pod="main-2"): "1 0x9",
        },
        "7m",
        CLUSTER,
        "only 2 bookies of main answer",
        {
            series("up", job="duramen", component="bookie", pod=f"main-{n}"): "1x10"
            for n in range(3)
        },
    ),
    Case(
        "DuramenOperatorDown",
        {
            'up{job="duramen-operator", namespace="NAMESPACE", pod="o"}': "1x2 _x20",
            'up{job="duramen-operator", namespace="elsewhere", pod="o"}': "1x22",
        },
        "18m",
        {},
        "no operator of NAMESPACE answers",
        {'up{job="duramen-operator", namespace="NAMESPACE", pod="o"}': "1x2 0x7 1x12"},
    ),
    Case(
        "DuramenRenewalStopped",
        {
            'up{job="duramen-operator", namespace="NAMESPACE", pod="o"}': "1x2 _x1500",
            'up{job="duramen-operator", namespace="shop", pod="o"}': "1x1500",
            'duramen_identity_expires_seconds{namespace="NAMESPACE", pod="b"}': "300000x9 _x1500",
        },
        "1d20m",
        {},
        "no operator of NAMESPACE has renewed certificates for a day",
        {
            'up{job="duramen-operator", namespace="NAMESPACE", pod="o"}': "1x2 _x1500",
            of_bookie("duramen_identity_expires_seconds", issuer="5a"): "300000-60x1500",
        },
    ),
    Case(
        "DuramenOperatorNotServing",
        {
            series("duramen_operator_leading", namespace="shop", pod="one"): "1x5 0x30",
            series("duramen_operator_leading", namespace="shop", pod="two"): "0x35",
        },
        "20m",
        {"namespace": "shop"},
        "operators of shop run, and none of them serves",
        {
            series("duramen_operator_leading", namespace="shop", pod="one"): "1x5 0x30",
            series("duramen_operator_leading", namespace="shop", pod="two"): "0x7 1x28",
        },
    ),
    Case(
        "DuramenOperatorStuck",
        {of_operator("duramen_operator_last_pass_timestamp_seconds"): "0x40"},
        "20m",
        OPERATED,
        "the operator did all that main needs last 20m 0s ago",
        {of_operator("duramen_operator_last_pass_timestamp_seconds"): "0+60x40"},
    ),
    Case(
        "DuramenOperatorRefused",
        {of_operator("duramen_operator_refused_steps"): "1x40"},
        "16m",
        OPERATED,
        "1 steps of the operator for main are refused again and again",
        {of_operator("duramen_operator_refused_steps"): "1x10 0 1x20"},
    ),
    Case(
        "DuramenOperatorLacksRights",
        {'duramen_operator_missing_rights{namespace="shop"}': "3x20"},
        "11m",
        {"namespace": "shop"},
        "the operator lacks 3 of the rights that it needs",
        {'duramen_operator_missing_rights{namespace="shop"}': "3x9 0x15"},
    ),
    Case(
        "DuramenWatchLate",
        {'duramen_operator_late_watches{namespace="shop"}': "2x20"},
        "11m",
        {"namespace": "shop"},
        "2 watches of the operator bring no changes",
        {'duramen_operator_late_watches{namespace="shop"}': "2x5 0x15"},
    ),
    Case(
        "DuramenClusterUnavailable",
        {
            'duramen_operator_condition{namespace="shop", kind="LogCluster", name="main", '
            'type="Available", status="False"}': "1x10"
        },
        "6m",
        {
            "namespace": "shop",
            "kind": "LogCluster",
            "name": "main",
            "type": "Available",
            "status": "False",
        },
        "LogCluster main is not available",
        {
            'duramen_operator_condition{namespace="shop", kind="LogCluster", name="main", '
            'type="Available", status="Unknown"}': "1x10"
        },
    ),
]
CASES = (*DATA, *BOOKIES, *TRAFFIC, *SECURITY, *PROCESSES)

MAIN_EXISTS = (
    'duramen_operator_condition{namespace="shop", kind="LogCluster", name="main", '
    'type="Ready", status="True"}'
)
"""What the operator says as long as there is a LogCluster, whatever becomes of its pods."""

GONE = [
    Case(
        "DuramenBookiesMissing",
        {series("up", job="duramen", component="bookie", pod="main-0"): "1 0x9"},
        "7m",
        CLUSTER,
        "only 0 bookies of main answer",
        {},
    ),
    Case(
        "DuramenBookiesMissing",
        {
            series("up", job="duramen", component="bookie", pod="main-0"): "1x3 _x20",
            MAIN_EXISTS: "1x23",
        },
        "20m",
        CLUSTER,
        "only 0 bookies of main answer",
        {
            series("up", job="duramen", component="bookie", pod="main-0"): "1x3 _x20",
            MAIN_EXISTS: "1x5 _x18",
        },
    ),
    Case(
        "DuramenNoAuditor",
        {of_sequencer("duramen_repair_is_auditor"): "1x3 _x30", MAIN_EXISTS: "0x33"},
        "25m",
        CLUSTER,
        "no sequencer of main is the auditor",
        {of_sequencer("duramen_repair_is_auditor"): "1x3 _x30"},
    ),
]
"""Alerts whose series are all gone; they are quiet when their cluster is gone, too."""
