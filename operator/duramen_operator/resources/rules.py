"""What the API server checks beyond types and ranges: rules in CEL, each saying what to change.

By the name of the model that they are about (`self` is a value of it; `oldSelf` makes it a rule
about changes). "Root" rules are about a whole object: there alone is metadata.name seen. A text's
pattern is a rule too (`HINTS`), because "should match ^(…" tells nobody what to write. What needs
other objects or the running cluster is not here: the operator says it in a condition.

Called by `schema`. Source: rule R20; docs/kubernetes/resources.md lists them all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from duramen.config import LIMIT_PATTERN
from duramen.units import DURATION_PATTERN, SIZE_PATTERN
from duramen_operator.resources.archives import (
    CRON_PATTERN,
    LOG_GLOB_PATTERN,
    NAMESPACE_GLOB_PATTERN,
)
from duramen_operator.resources.clusters import SERVERS_PATTERN
from duramen_operator.resources.grants import (
    GROUP_PATTERN,
    ISSUER_PATTERN,
    SCOPE_PATTERN,
    SERVICE_PATTERN,
    SUBJECTS,
    TOKEN_PATTERN,
    USER_PATTERN,
)
from duramen_operator.resources.logs import LOG_PATTERN, NAMESPACE_PATTERN, TRUNCATION_PATTERN
from duramen_operator.resources.part import (
    HOST_PATTERN,
    LABEL_PATTERN,
    NAME_PATTERN,
    QUANTITY_PATTERN,
)


class Rule(NamedTuple):
    """A CEL expression that must be true, and the sentence for when it is not."""

    rule: str
    message: str
    """For people. Not made from values by CEL: the server takes the text of a number for endless,
    and refuses the expression for what it might cost."""

    def to_json(self) -> dict[str, str]:
        """As `x-kubernetes-validations` wants it."""
        return {"rule": self.rule, "message": self.message}


NAME_MAX: Final = 40
"""Names of pods are made from it, with "-writeproxy" or a region and a zone. What is longer is
shortened by a digest, which people can read less well; so few are."""

HINTS: Final[Mapping[str, str]] = {
    DURATION_PATTERN: 'write a duration with its unit, such as "250ms", "1h30m" or "7d"',
    LIMIT_PATTERN + DURATION_PATTERN: 'write a duration with its unit, such as "72h" or "30d", or '
    '"none" for ever',
    LIMIT_PATTERN + SIZE_PATTERN: 'write a size with its unit, such as "10GiB", or "none" for no '
    "limit",
    SIZE_PATTERN: 'write a size with its unit, such as "64MiB" or "10GiB"',
    QUANTITY_PATTERN: 'write an amount as Kubernetes does, such as "20Gi", greater than 0',
    LABEL_PATTERN: "write 1 to 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit",
    HOST_PATTERN: "write the name of a host without scheme and port, such as logs.example.org, in "
    "small letters; addresses need not be named",
    NAME_PATTERN: "write the name of an object: a-z, 0-9, '-' and '.', beginning and ending with "
    "a letter or digit",
    NAMESPACE_PATTERN: "write 1 to 63 of a-z, 0-9 and '-', beginning and ending with a letter or "
    "digit",
    LOG_PATTERN: "write 1 to 255 of A-Z, a-z, 0-9, '.', '_' and '-', beginning with a letter or "
    "digit",
    TRUNCATION_PATTERN: "write a position that stands still: seq:N, dlsn:e1n2s3 or lsn:e1n2; tail "
    "and ago: would move on by themselves and cut off records that were just written",
    CRON_PATTERN: "write five fields as cron does (minute hour day month weekday), such as "
    '"15 * * * *", or @hourly, @daily, @weekly, @monthly, @yearly',
    NAMESPACE_GLOB_PATTERN: "write the name of a namespace, or a glob of a-z, 0-9, '-' with *, ? "
    "or […], such as prod-*",
    LOG_GLOB_PATTERN: "write the name of a log, or a glob of A-Z, a-z, 0-9, '.', '_', '-' with *, "
    "? or […], such as orders-*; its namespace stands in selector.namespace",
    ISSUER_PATTERN: "write the short name of an issuer: 1 to 32 of a-z, 0-9, '-', beginning with "
    "a letter",
    USER_PATTERN: "write ISSUER/SUBJECT: the issuer's short name, and 1 to 255 visible characters "
    "of ASCII as sub has them",
    GROUP_PATTERN: "write ISSUER/GROUP: the issuer's short name, and the group as its tokens have "
    "it, without blanks at its ends",
    TOKEN_PATTERN: "write the id of an access token, 16 of a-z and 2-7: what stands behind dur1_, "
    "and nothing of the secret",
    SERVICE_PATTERN: "write ROLE/NAME as in a certificate of the cluster, such as client/till",
    SCOPE_PATTERN: "write NAMESPACE, NAMESPACE/PREFIX* or NAMESPACE/LOG; the whole cluster is "
    "given by `duramen grant`: set a namespace",
    SERVERS_PATTERN: 'write "host:port,host:port", such as "zk-0.zk:2181,zk-1.zk:2181"',
}


def _stays(field: str, why: str) -> Rule:
    """A field that cannot be changed once the object is there."""
    old, new = f"oldSelf.{field}", f"self.{field}"
    return Rule(f"{new} == {old}", f"{field} cannot be changed: {why}")


def _object_name(most: int, what: str) -> Rule:
    return Rule(
        f"self.metadata.name.size() <= {most} && "
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        f"metadata.name: use at most {most} of a-z, 0-9 and '-', beginning with a letter: "
        f"{what} are named after it",
    )


def _name_stays(what: str) -> Rule:
    name = "(has({0}.spec.name) ? {0}.spec.name : {0}.metadata.name)"
    return Rule(
        f"{name.format('self')} == {name.format('oldSelf')}",
        f"spec.name cannot be changed: the {what} would be another one. Make a new object",
    )


_IN_CLUSTER: Final = "what it names lives in that cluster. Make a new object"


def _or(field: str, default: int) -> str:
    """A field of `replication`, or what it is where it is left out. The schema has no defaults: it
    would fill in the fields of both forms."""
    return f"(has(self.{field}) ? self.{field} : {default})"


def _has_any(fields: Collection[str]) -> str:
    return " || ".join(f"has(self.{field})" for field in fields)


_SUFFICE: Final = "self.regions_that_must_suffice"
_ENSEMBLE, _WRITE, _ACK = _or("ensemble_size", 3), _or("write_quorum", 3), _or("ack_quorum", 2)
_MIN_RACKS, _MIN_REGIONS = _or("min_racks", 2), _or("min_regions", 1)
_NODE, _RACK, _REGION = _or("node", 3), _or("rack", 2), _or("region", 1)
_OF_STRIPED: Final = ("ensemble_size", "write_quorum", "ack_quorum", "min_racks", "min_regions")
_OF_FLEXIBLE: Final = ("node", "rack", "region", "extras")
_REPLICATION: Final = (
    Rule(
        f"!({_has_any(_OF_STRIPED)}) || !({_has_any(_OF_FLEXIBLE)})",
        f"{', '.join(_OF_STRIPED)} are of striped logs, {', '.join(_OF_FLEXIBLE)} of logs with "
        "copysets: flexible: use those of one form",
    ),
    Rule(
        f"{_ENSEMBLE} >= {_WRITE}",
        "ensemble_size is less than write_quorum: raise ensemble_size or lower write_quorum",
    ),
    Rule(
        f"{_WRITE} >= {_ACK}",
        "write_quorum is less than ack_quorum: raise write_quorum or lower ack_quorum",
    ),
    Rule(
        f"{_ACK} >= {_MIN_RACKS}",
        "ack_quorum copies cannot lie in min_racks racks: raise ack_quorum or lower min_racks",
    ),
    Rule(
        f"{_ACK} >= {_MIN_REGIONS}",
        "ack_quorum copies cannot lie in min_regions regions: raise ack_quorum or lower "
        "min_regions",
    ),
    Rule(
        f"!has({_SUFFICE}) || {_SUFFICE} >= {_MIN_REGIONS}",
        "fewer regions than min_regions never suffice: raise regions_that_must_suffice to "
        "min_regions, or lower min_regions",
    ),
    # Spread as evenly as can be over S regions, the (min − 1) fullest hold this many of Qw copies;
    # with Qa of them in so few regions an acknowledged entry could be lost with them (R20).
    Rule(
        f"{_MIN_REGIONS} <= 1 || [has({_SUFFICE}) ? {_SUFFICE} : {_MIN_REGIONS}]"
        f".all(s, s < {_MIN_REGIONS} || ({_MIN_REGIONS} - 1) * ({_WRITE} / s) + "
        f"({_WRITE} % s < {_MIN_REGIONS} - 1 ? {_WRITE} % s : {_MIN_REGIONS} - 1) < {_ACK})",
        "with regions_that_must_suffice regions left (by default min_regions), ack_quorum copies "
        "of some entry lie in fewer than min_regions regions: raise ack_quorum or "
        "regions_that_must_suffice, or lower min_regions",
    ),
    Rule(
        f"{_NODE} >= {_RACK}",
        "node copies cannot lie in rack racks: raise node or lower rack",
    ),
    Rule(
        f"{_RACK} >= {_REGION}",
        "rack racks cannot lie in region regions: raise rack or lower region",
    ),
    Rule(
        f"!has({_SUFFICE}) || {_SUFFICE} >= {_REGION}",
        "fewer regions than region never suffice: raise regions_that_must_suffice to region, or "
        "lower region",
    ),
)
_HAS_TOLERATE: Final = "has(self.nodeset) && has(self.nodeset.tolerate)"
_HAS_NODE: Final = "has(self.replication) && has(self.replication.node)"
_NODESET: Final = (
    Rule(
        f"!({_HAS_TOLERATE} && {_HAS_NODE}) || self.nodeset.tolerate < self.replication.node",
        "nodeset.tolerate must be less than replication.node, or all copies of an entry may be "
        "away: lower tolerate or raise node",
    ),
    Rule(
        f"!({_HAS_TOLERATE} && {_HAS_NODE} && has(self.nodeset.size)) || "
        "type(self.nodeset.size) == string || int(self.nodeset.size) >= self.replication.node + "
        "(has(self.replication.extras) ? self.replication.extras : 0) + self.nodeset.tolerate",
        "nodeset.size is less than replication.node, extras and nodeset.tolerate together: raise "
        "size or lower one of these",
    ),
)
"""What is not named is not known here: it stays as it is."""


_COLD_STORE: Final = (
    Rule(
        "self.url.matches('^(s3|hdfs|webhdfs|file)://.+')",
        "url: write s3://bucket/prefix, webhdfs://user@host:port/directory, "
        "hdfs://user@host:port/directory or file:///folder",
    ),
    Rule(
        "!self.url.startsWith('file:') || has(self.claimName)",
        "claimName: a file: URL needs a PersistentVolumeClaim, or each pod would have an archive "
        "of its own and lose it: name a ReadWriteMany claim, or use s3:// or webhdfs://",
    ),
    Rule(
        "self.url.startsWith('file:') || !has(self.claimName)",
        "claimName is for file: URLs alone: take it away, or write file:///folder",
    ),
)

_STORAGE: Final = (
    Rule(
        "isQuantity(self.size) && quantity(self.size).isGreaterThan(quantity('0'))",
        f"size: {HINTS[QUANTITY_PATTERN]}",
    ),
)

_REQUIREMENTS: Final = tuple(
    Rule(
        f"!has(self.requests) || !has(self.limits) || !('{what}' in self.requests) || "
        f"!('{what}' in self.limits) || quantity(string(self.requests['{what}']))"
        f".compareTo(quantity(string(self.limits['{what}']))) <= 0",
        f"requests.{what} is more than limits.{what}: raise the limit or lower the request",
    )
    for what in ("cpu", "memory")
)

RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    "Requirements": _REQUIREMENTS,
    "LogReplication": _REPLICATION,
    "LogDefaults": _NODESET,
    # Else `age: null`, which `kubectl apply` drops, would mean the default, which deletes records.
    # Null that does get here is not there either, for `has`.
    "Retention": (
        Rule(
            "has(self.age)",
            'age: write how long records are kept, such as "72h", or "none" for ever (null may be '
            "dropped on the way here)",
        ),
        Rule(
            "!has(oldSelf.bytes) || has(self.bytes)",
            'bytes: write "none" to lift the limit, or put it back: what is not named stays as it '
            "is (null may be dropped on the way here)",
        ),
    ),
    "Roll": (
        Rule(
            "!has(self.interval) || self.interval.contains('d') || "
            "duration(self.interval) >= duration('100ms')",
            'interval: write "100ms" or more, or a segment could not take an append',
        ),
        Rule(
            "!has(self.idle_close) || self.idle_close.contains('d') || "
            "duration(self.idle_close) >= duration('1s')",
            'idle_close: write "1s" or more, or a segment could not take an append',
        ),
    ),
    "Flush": tuple(
        Rule(
            f"!has(self.{field}) || !self.{field}.contains('d') && "
            f"duration(self.{field}) <= duration('1s')",
            f'{field}: write "1s" or less: an append has ten seconds altogether',
        )
        for field in ("interval", "wait_max")
    ),
    "Window": (
        Rule(
            "!has(self.stall) || !self.stall.contains('d') && duration(self.stall) >= "
            "duration('1s') && duration(self.stall) <= duration('60s')",
            'stall: write "1s" to "60s": the owner takes its log over where an entry is stuck',
        ),
    ),
    "ZooKeeperStorage": _STORAGE,
    "JournalStorage": _STORAGE,
    "LedgersStorage": _STORAGE,
    "ColdStoreSpec": _COLD_STORE,
    "LogCluster": (_object_name(NAME_MAX, "services and pods"),),
    "ClusterTls": (
        Rule(
            "self.issuer != 'certManager' || has(self.issuerRef) && has(self.trust)",
            "issuer: certManager needs an issuerRef, and a trust, the ConfigMap with the CA that "
            "signs: write both",
        ),
        Rule(
            "self.issuer == 'certManager' || !has(self.issuerRef) && !has(self.trust)",
            "issuerRef and trust are for issuer: certManager alone: take them away, or write "
            "certManager",
        ),
    ),
    "LogClusterSpec": (
        Rule(
            "self.security != 'none' || self.acceptAnybody",
            "acceptAnybody: with security: none whoever reaches a port may do everything. Write "
            "acceptAnybody: true if that is meant",
        ),
        Rule(
            "self.security != 'on' || !self.acceptAnybody",
            "acceptAnybody: with security: on nobody is let in without an identity or a token. "
            "Take acceptAnybody away, or write security: none if that is meant",
        ),
        Rule(
            "self.security == 'on' || !self.audit.require",
            "audit.require: with security: none nobody is known and nothing is recorded. Write "
            "audit.require: false, or make another cluster with security: on",
        ),
        Rule(
            "self.security == 'on' || !has(self.issuers)",
            "issuers: with security: none nobody is asked for a token: take it away, or make "
            "another cluster with security: on",
        ),
        Rule(
            "self.security != 'on' || oldSelf.security != 'on' || "
            "self.tls.issuer == oldSelf.tls.issuer",
            "tls.issuer cannot be changed yet: who would issue has not the CA of who issues now, "
            "and what it made would be strangers to all others. Put it back",
        ),
        Rule(
            "!has(oldSelf.coldStore) || has(self.coldStore) && "
            "self.coldStore.url == oldSelf.coldStore.url",
            "coldStore.url stays once it is set: what was archived lies there, and its hot copies "
            "may be gone. Put back the old URL",
        ),
        Rule(
            "!has(oldSelf.domains) || oldSelf.domains.all(d, has(self.domains) && "
            "self.domains.exists(e, e.region == d.region && e.zone == d.zone))",
            "a domain cannot be taken away yet: its bookies hold data that would have to move "
            "first. Put it back; others may be added",
        ),
        Rule(
            "self.lostBookieGrace.contains('d') || "
            "duration(self.lostBookieGrace) >= duration('10s')",
            'lostBookieGrace: write "10s" or more, or each restart of a bookie would copy all it '
            "holds",
        ),
    ),
    "ExternalZooKeeper": (
        Rule(
            "has(self.cluster) == has(oldSelf.cluster) && "
            "(!has(self.cluster) || self.cluster == oldSelf.cluster)",
            "cluster cannot be changed: an empty cluster would be found under the new name. Put "
            "back the old value",
        ),
    ),
    "ZooKeeper": (
        Rule(
            "has(self.external) == has(oldSelf.external)",
            "external can neither be added nor taken away: the metadata of all logs lies where it "
            "is. Make a new LogCluster",
        ),
        Rule(
            "self.members == oldSelf.members",
            "members cannot be changed yet: an ensemble grows in steps that are not built. Put "
            "back the old number",
        ),
        Rule(
            "self.storage == oldSelf.storage",
            "storage cannot be changed: a StatefulSet keeps its claims as they are. Put back the "
            "old values; a claim is grown by editing the claim",
        ),
    ),
    "Autoscaling": (
        Rule(
            "self.maxReplicas >= self.minReplicas",
            "maxReplicas is less than minReplicas: raise maxReplicas or lower minReplicas",
        ),
    ),
    "Proxies": (
        Rule(
            "!has(self.autoscaling) || has(self.resources) && has(self.resources.requests) && "
            "'cpu' in self.resources.requests",
            "autoscaling by CPU is a share of what is requested: set resources.requests.cpu",
        ),
    ),
    "BookieSet": (_object_name(NAME_MAX, "pods and claims"),),
    "BookieSetSpec": (
        _stays("clusterName", "its bookies hold that cluster's data. Make a new BookieSet"),
        *(
            _stays(
                field,
                "a StatefulSet keeps its claims as they are. Put back the old values; a claim is "
                "grown by editing the claim, a larger disk is a new BookieSet",
            )
            for field in ("journal", "ledgers")
        ),
    ),
    "BookieSpec": (
        _stays("clusterName", "the operator made this object for one bookie"),
        _stays("bookieSet", "the operator made this object for one bookie"),
    ),
    "LogNamespace": (
        Rule(
            f"has(self.spec.name) || self.metadata.name.matches('{NAMESPACE_PATTERN}')",
            "metadata.name is no name of a namespace (a-z, 0-9 and '-', at most 63): set spec.name",
        ),
        _name_stays("namespace"),
    ),
    "LogNamespaceSpec": (_stays("clusterName", _IN_CLUSTER),),
    "Log": (_name_stays("log"),),
    "LogSpec": (
        *_NODESET,
        _stays("clusterName", _IN_CLUSTER),
        Rule(
            "self.__namespace__ == oldSelf.__namespace__",
            "namespace cannot be changed: the log would be another one. Make a new object",
        ),
        Rule(
            "self.sealed || !oldSelf.sealed",
            "sealed cannot be taken back: readers were told that nothing follows. Put back "
            "sealed: true; further records need a new log",
        ),
    ),
    "LogGrantSpec": (
        Rule(
            "self == oldSelf",
            "a grant cannot be changed: make a new object, and delete this one",
        ),
    ),
    "GrantSubject": (
        Rule(
            f"[{', '.join(f'has(self.{name})' for name in SUBJECTS)}].filter(one, one).size() == 1",
            f"write exactly one of {', '.join(SUBJECTS)}",
        ),
    ),
    "ArchivePolicySpec": (
        _stays("clusterName", _IN_CLUSTER),
        Rule(
            "has(self.schedule) || self.onClosedSegments || self.suspend",
            "nothing says when to run: set schedule, onClosedSegments: true, or both",
        ),
    ),
}
