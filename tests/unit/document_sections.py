"""Sections of documents that are made from the code, compared or rewritten.

Used by `test_error_docs` and `test_cli_commands`.
"""

from __future__ import annotations

import os
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs" / "protocol"
REWRITE = os.environ.get("DURAMEN_REWRITE") == "1"


def check_section(document: str, name: str, expected: str) -> None:
    """Compare a generated section with the committed one, or rewrite it."""
    path = DOCS / document
    text = path.read_text(encoding="utf-8")
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    head, found_begin, rest = text.partition(begin)
    body, found_end, tail = rest.partition(end)
    assert found_begin and found_end, f"{document} has no section {name!r}"
    if REWRITE and body != expected:
        path.write_text(head + begin + expected + end + tail, encoding="utf-8")
        body = expected
    assert body == expected, f"{document}: {name} is stale; `make docs` rewrites it"
