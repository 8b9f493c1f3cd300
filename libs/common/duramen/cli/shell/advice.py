"""What a person does next after a failure: one sentence for each code of the error table.

The error itself says what is wrong with this request; here stands what to type or to wait for. A
code without an entry does not pass the tests, so nobody is left alone with a new one. An entry may
have several sentences: shown is the first one all of whose flags the command has that failed.

Called by `shell.frame`. Source: docs/cli.md, docs/protocol/errors.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from duramen.cluster.cluster_file import ClusterFileError
from duramen.errors import DuramenError
from duramen.runtime.http_client import (
    DeniedError,
    PeerError,
    UnreachableError,
    UntrustedPeerError,
)

_HELP: Final = "see the same command with --help"
_WAIT: Final = "repeat the command in a moment: nothing was done"
_WATCH: Final = "see duramen bookies and duramen repair status"
_TRUST: Final = (
    "give the certificate of who issued its own to duramen context add (docs/cli.md), and look at"
)
_AGAIN: Final = "repeat the command in a moment"
_LATER: Final = (f"{_AGAIN}, or choose another proxy with --url", _AGAIN)
_ANEW: Final = (
    "begin anew without --producer, from the last line that is stored",
    "begin anew, behind the last record that is stored",
)
_SMALLER: Final = ("use a smaller --batch-bytes", "ask for less at once")

ADVICE: Final[Mapping[str, str | Sequence[str]]] = {
    "invalid_argument": _HELP,
    "invalid_name": _HELP,
    "invalid_position": _HELP,
    "unknown_field": "see docs/protocol/configuration.md for the fields there are",
    "unsupported_media": "this command and the server have different versions: see --version",
    "not_acceptable": "this command and the server have different versions: see --version",
    "unauthenticated": (
        "keep what your operator gave you for this cluster: duramen context add, and duramen "
        "context use (docs/cli.md)"
    ),
    "forbidden": "ask whoever gives rights on it for this one, or use another context",
    "namespace_not_found": "see duramen namespace list, or make it: duramen namespace create NAME",
    "misdirected": "call the server by its address, or give it this public name at its start",
    "namespace_not_empty": "see duramen log list NAMESPACE, and delete them; an hour later it goes",
    "log_not_found": "see duramen log list NAMESPACE, or make it: duramen log create NAMESPACE/LOG",
    "segment_not_found": "see duramen segments NAMESPACE/LOG",
    "log_exists_with_other_config": (
        "see duramen log show NAMESPACE/LOG; duramen log reconfigure changes it"
    ),
    "config_conflict": "somebody else changed it: look again, then repeat",
    "log_deleted": "have it back with duramen log undelete NAMESPACE/LOG, while that is possible",
    "log_ended": "append to another log: this one takes no more records",
    "log_held": "append where its writer runs, or stop that one: the log is free a moment later",
    "needs_ordered": (
        "append with --no-producer, or change the log's ack_mode: duramen log reconfigure",
        "leave out what needs order, or change the log's ack_mode: duramen log reconfigure",
    ),
    "mode_changing": "see duramen log show NAMESPACE/LOG for the ack_mode that it is to have",
    "not_appended": "append the same again: it is certainly not stored",
    "audit_unavailable": "see why the audit log is away: duramen story duramen-system/audit",
    "condition_failed": "read what is there now, then decide anew",
    "fencing_token_mismatch": "another writer has taken over: stop this one",
    "producer_fenced": (
        "another run with this --producer began later: stop this one",
        "another run of this producer began later: stop this one",
    ),
    "producer_gap": _ANEW,
    "producer_unknown": _ANEW,
    "record_too_large": "cut the record: see docs/protocol/rest.md for the limits",
    "batch_too_large": _SMALLER,
    "too_many_records": _SMALLER,
    "beyond_tail": (
        "use --from tail, or --follow to wait for what comes",
        "name a position that is not behind the last record: duramen tail NAMESPACE/LOG shows it",
    ),
    "placement_impossible": "see duramen bookies for who takes new data and where",
    "rate_limited": _WAIT,
    "too_many_logs": "delete logs that nobody needs, or have limits.logs of the namespace raised",
    "append_uncertain": "read the log's end before appending the same again",
    "window_full": _WAIT,
    "overloaded": _WAIT,
    "not_enough_bookies": _WATCH,
    "log_unavailable": [
        f"{said}; duramen story NAMESPACE/LOG tells what happens to it" for said in _LATER
    ],
    "metadata_unavailable": [f"{said}; see that ZooKeeper runs" for said in _LATER],
    "cold_store_unavailable": "see that the cold store can be reached, then repeat",
    "server_draining": _LATER,
    "data_unavailable": _WATCH,
    "data_lost": (
        "read on behind it, with --from: somebody accepted that it is gone",
        "somebody accepted that it is gone: a producer begins a new epoch",
    ),
    "internal": "look into the server's log file; it is safe to repeat a read",
}
"""Code → what to do: one sentence, or several of which the first one that fits is shown."""

_EVERYWHERE: Final = frozenset({"--help", "--version"})
_FLAG: Final = re.compile(r"--[a-z][a-z-]*")
_VARIABLE: Final = re.compile(r"\$(DURAMEN_\w+)")
_OF_ADDRESSES: Final = ("--url", "--read-url", "--admin-url", "--zookeeper")
"""Flags that name a server, as far as a command has them."""


class CommandFacts(NamedTuple):
    """What a command can be told, so that nobody is sent to a flag that is not there."""

    flags: frozenset[str] = frozenset()
    variables: tuple[str, ...] = ()
    """Of the environment, that say where its server is."""

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> CommandFacts:
        """Those of a command with these flags and their helps."""
        found = [name for text in parameters.values() for name in _VARIABLE.findall(text)]
        return cls(frozenset(parameters), tuple(dict.fromkeys(found)))

    def name_addresses(self, *more: str) -> str:
        """The flags and variables that say where its server is."""
        flags = [flag for flag in (*more, *_OF_ADDRESSES) if flag in self.flags]
        return " or ".join([*flags, *(f"${name}" for name in self.variables)])


_NO_FACTS: Final = CommandFacts()


def advise(error: Exception, command: CommandFacts = _NO_FACTS) -> str | None:
    """What to do next; None where the error's own sentence says it."""
    match error:
        case DuramenError():
            return choose(ADVICE[error.code], command)
        case DeniedError():
            return choose(ADVICE["unauthenticated"], command)
        case UntrustedPeerError():
            return _join(_TRUST, command)
        case UnreachableError():
            return _join("see that the cluster runs (duramen run), and look at", command)
        case PeerError():
            return _join("see the server's log file, that it is a proxy, and look at", command)
        case ClusterFileError():
            places = command.name_addresses("--data")
            return f"or name the cluster: {places}" if places else None
        case _:
            told = getattr(error, "advice", None)  # errors of programs beside this library
            return told if isinstance(told, str) else None


def choose(advice: str | Sequence[str], command: CommandFacts) -> str:
    """The first sentence that speaks of nothing that the command does not have."""
    sentences = [advice] if isinstance(advice, str) else advice
    known = command.flags | _EVERYWHERE
    return next((one for one in sentences if known.issuperset(_FLAG.findall(one))), sentences[-1])


def _join(text: str, command: CommandFacts) -> str:
    places = command.name_addresses()
    return f"{text} {places}" if places else text.rpartition(", ")[0]
