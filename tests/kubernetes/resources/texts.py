"""Descriptions of a log's configuration, as docs/protocol/configuration.md has them.

`kubectl explain` shows the words of that page: they are written once. Whether the page names every
field is tests/unit/test_error_docs.py's.

Called by the tests beside this module, and by those that need the definitions without the chart.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "protocol" / "configuration.md"
_ROW = re.compile(r"^\| `([a-z_.]+)` \| `([^`]+)` \| (.+) \|$", re.MULTILINE)

GROUPS = {
    "replication": "How many copies an entry has and where they may lie. Named, it is named as a "
    "whole, in the form of the log's copysets: what is left out of it gets its default.",
    "nodeset": "The bookies that an epoch of a log with flexible copysets may use.",
    "tiering": "What the archive does with closed segments.",
    "roll": "When a segment is closed and the next one opened.",
    "retention": "How long records are kept.",
    "flush": "When waiting batches become an entry.",
    "window": "What may be between the oldest and the newest unacknowledged append.",
    "producers": "State that is kept for idempotent producers.",
}
"""The page has no rows for groups."""

NOT_NAMED = "Not named, it stays as it is; a new log gets"


def read_texts() -> dict[str, str]:
    """Path of each configuration field of a log to its description, plain."""
    section = PAGE.read_text(encoding="utf-8").partition("## Log\n")[2].partition("\n## ")[0]
    texts = dict(GROUPS)
    for name, default, meaning in _ROW.findall(section):
        plain = re.sub(r"\[([^\]]+)\]\(([^)]+)\)", r"docs/protocol/\2", meaning).replace("`", "")
        text = plain[0].upper() + plain[1:].rstrip(".") + "."
        if name.startswith("replication."):
            text += f" Left out where others are named: {default}."
        else:
            text += f" {NOT_NAMED} the namespace's default, else {default}."
        texts[name] = text
    return texts
