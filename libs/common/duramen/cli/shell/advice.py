"""What a person does next after a failure: one sentence for each code of the error table.

The error itself says what is wrong with this request; here stands what to type or to wait for. A
code without an entry does not pass the tests, so nobody is left alone with a new one.

Called by `cli.main`. Source: 03-api "CLI", docs/protocol/errors.md.
"""

from __future__ import annotations

from typing import Final

from duramen.cluster.cluster_file import ClusterFileError
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError, UnreachableError

_HELP: Final = "see the same command with --help"
_WAIT: Final = "repeat the command in a moment: nothing was done"
_WATCH: Final = "see duramen bookies and duramen repair status"
_LATER: Final = "repeat the command in a moment, or choose another proxy with --url"

ADVICE: Final = {
    "invalid_argument": _HELP,
    "invalid_name": _HELP,
    "invalid_position": _HELP,
    "unknown_field": "see docs/protocol/configuration.md for the fields there are",
    "unsupported_media": "this command and the server have different versions: see --version",
    "unauthenticated": "say who you are, as your operator told you",
    "forbidden": "ask who may do this here",
    "namespace_not_found": "see duramen namespace list, or make it: duramen namespace create NAME",
    "misdirected": "call the server by its address, or start it with --public-name NAME",
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
    "condition_failed": "read what is there now, then decide anew",
    "fencing_token_mismatch": "another writer has taken over: stop this one",
    "producer_fenced": "another run with this --producer began later: stop this one",
    "producer_gap": "begin anew without --producer, from the last line that is stored",
    "producer_unknown": "begin anew without --producer, from the last line that is stored",
    "record_too_large": "cut the record: see docs/protocol/rest.md for the limits",
    "batch_too_large": "use a smaller --batch-bytes",
    "too_many_records": "use a smaller --batch-bytes",
    "beyond_tail": "use --from tail, or --follow to wait for what comes",
    "placement_impossible": "see duramen bookies for who takes new data and where",
    "rate_limited": _WAIT,
    "append_uncertain": "read the log's end before appending the same again",
    "window_full": _WAIT,
    "overloaded": _WAIT,
    "not_enough_bookies": _WATCH,
    "log_unavailable": f"{_LATER}; duramen story NAMESPACE/LOG tells what happens to it",
    "metadata_unavailable": f"{_LATER}; see that ZooKeeper runs",
    "cold_store_unavailable": "see that the cold store can be reached, then repeat",
    "server_draining": _LATER,
    "data_unavailable": _WATCH,
    "data_lost": "read on behind it: somebody accepted that it is gone",
    "internal": "look into the server's log file; it is safe to repeat a read",
}
"""Code → what to do."""

NO_ANSWER: Final = "see that the cluster runs (duramen run) and that --url is right"
NO_CLUSTER: Final = "or name the cluster: --data, --url, or the variable DURAMEN_URL"


def advise(error: Exception) -> str | None:
    """What to do next; None where the error's own sentence says it."""
    match error:
        case DuramenError():
            return ADVICE[error.code]
        case UnreachableError():
            return NO_ANSWER
        case PeerError():
            return "see the server's log file, and that --url is a proxy's; then repeat"
        case ClusterFileError():
            return NO_CLUSTER
        case _:
            told = getattr(error, "advice", None)  # errors of programs beside this library
            return told if isinstance(told, str) else None
