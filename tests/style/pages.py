"""Pages: each can be reached from README.md, its links lead somewhere, `make docs` remakes it.

Each `find_…` takes texts and what there is, and returns its faults as sentences, none when all is
well. Nothing here touches the disk, so `test_pages.py` can plant what is wrong and prove that each
rule can fail. A link to a folder leads to the README.md of the folder. What stands in a block of
code or between back quotes is no link, and in a block of code no heading.

Not here: citations, which name a page without a link (`citations.py`). Addresses of other hosts
are not looked up.
"""

import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final

ENTRANCE: Final = "README.md"
INDEX: Final = "docs/README.md"
SCENARIOS: Final = "tests/scenario/"
"""These tests rewrite what they expect, and no page: `make scenario REWRITE=1` does that."""

_FENCED = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"(`+)(?:(?!\n\s*\n).)+?\1", re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)
_ANCHOR = re.compile(r"<a id=\"([^\"]+)\"></a>")
_LINK = re.compile(r"\]\(([^()\s]+)(?:\s+\"[^\"]*\")?\)|^ {0,3}\[[^\]\n]+\]:\s+(\S+)", re.MULTILINE)
_LINKED_WORDS = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_OTHER_HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_REWRITES = re.compile(r"environ\.get\(\"DURAMEN_REWRITE\"\)|^ +check_section\(", re.MULTILINE)
_TEST_ID = re.compile(r"(tests/[\w/]+\.py)::(\w+)")


def list_headings(page: str) -> list[str]:
    """The headings of a page, in their order."""
    return _HEADING.findall(_FENCED.sub("", page))


def list_anchors(page: str) -> set[str]:
    """What a link may have behind its #: own anchors, and those that headings give."""
    anchors = set(_ANCHOR.findall(_FENCED.sub("", page)))
    counts: Counter[str] = Counter()
    for heading in list_headings(page):
        words = _LINKED_WORDS.sub(r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        anchors.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return anchors


def resolve(folder: str, name: str) -> str:
    """The path, from the root on, that `name` means in `folder`."""
    return posixpath.normpath(posixpath.join(folder, name))


def find_link_faults(
    path: str, text: str, pages: Mapping[str, str], files: Collection[str]
) -> list[str]:
    """Links of a page to files or anchors that are not there.

    Args:
        pages: every page of the repository, by its path.
        files: the path of every file of the repository.
    """
    faults = []
    for link in _list_links(text):
        name, _, anchor = link.partition("#")
        target = _find_target(path, name, files)
        if target is None:
            faults.append(f"{path}: links to {name}, which is not there")
        elif anchor and anchor not in list_anchors(pages.get(target, "")):
            faults.append(f"{path}: {target} has no anchor #{anchor}")
    return faults


def find_unreachable(pages: Mapping[str, str]) -> list[str]:
    """Pages that no way of links leads to from the entrance."""
    reached: set[str] = set()
    waiting = [ENTRANCE]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting += _list_linked_pages(page, pages)
    return [f"{page}: no links lead there from {ENTRANCE}" for page in sorted({*pages} - reached)]


def find_unindexed(pages: Mapping[str, str]) -> list[str]:
    """Pages that the index itself does not link to."""
    linked = {INDEX, *_list_linked_pages(INDEX, pages)}
    return [f"{page}: {INDEX} has no link to it" for page in sorted({*pages} - linked)]


def find_unmade(makefile: str, tests: Mapping[str, str]) -> list[str]:
    """Tests that rewrite pages and that the Makefile does not name, or names and are not there.

    Args:
        tests: the text of every file below tests/, by its path.
    """
    named = _TEST_ID.findall(makefile)
    faults = [
        f"Makefile: there is no {path}::{function}"
        for path, function in named
        if f"def {function}(" not in tests.get(path, "")
    ]
    rewriting = [
        path
        for path, text in tests.items()
        if _REWRITES.search(text) and path.rpartition("/")[2].startswith("test_")
    ]
    faults += [
        f"{path}: rewrites a page, and `make docs` does not run it"
        for path in rewriting
        if not path.startswith(SCENARIOS) and path not in {path for path, _ in named}
    ]
    return faults


def _list_links(text: str) -> Iterator[str]:
    """What the page links to in this repository."""
    plain = _QUOTED.sub("", _FENCED.sub("", text))
    links = (found[1] or found[2] for found in _LINK.finditer(plain))
    yield from (link for link in links if not _OTHER_HOST.match(link))


def _list_linked_pages(path: str, pages: Mapping[str, str]) -> list[str]:
    names = (link.partition("#")[0] for link in _list_links(pages.get(path, "")))
    targets = (_find_target(path, name, pages) for name in names)
    return [target for target in targets if target is not None]


def _find_target(path: str, name: str, files: Collection[str]) -> str | None:
    """The file that a link of the page `path` leads to."""
    target = resolve(posixpath.dirname(path), name) if name else path
    candidates = (target, resolve(target, "README.md"))
    return next((candidate for candidate in candidates if candidate in files), None)
