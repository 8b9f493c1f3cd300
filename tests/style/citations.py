"""Citations: what a page, a rule, a test or a mutant is said to be is there, in this repository.

Each `find_…` takes texts and what there is, and returns its faults as sentences, none when all is
well. Nothing here touches the disk, so `test_citations.py` can plant what is wrong and prove that
each rule can fail. A citation of a page is its path, alone or with a heading in quotes behind it;
`format_headings` says which headings a page has. Rules are those of docs/protocol/rules.md, whose
sections have the form that `find_rule_faults` asks for.

Not here: links (`pages.py`), and whether what a citation says of the page is true. CONTRIBUTING.md
has the style on a page.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from tests.style.pages import list_headings, resolve
from tests.style.tree import ROOT, list_paths

KINDS = (".py", ".md", ".txt", ".toml")

RULES_PAGE: Final = "docs/protocol/rules.md"
LINKED_FOLDERS: Final = ("", "docs", "docs/protocol", "docs/kubernetes")
"""Where a page may lie that is cited by its name alone, beside the folder of who cites it."""

_PAGE = r"(?<![\w./-])(?:\.\./)*((?:[\w-]+/)*[\w-]+\.md)"
_HEADINGS = re.compile(_PAGE + r"(?:#[\w-]+)?\)?,? \(?((?:\"[^\"]+\"(?:,? and |, )?)+)")
_RECORD = re.compile(r"\bADR (\d{4})\b")
_RECORD_LINK = re.compile(r"\[ADR (\d{4})\]\((?:[\w.-]+/)*(\d{4})-")
_RECORD_PAGE = re.compile(r"docs/adr/(\d{4})-")
_BROKEN_LINE = re.compile(r"\s*\n\s*(?:# )?")
_FOREIGN = re.compile(
    r"(?<![\w./-])0\d-[a-z]{3,}\b|(?<!RFC \d{4} )\bsections? \d+\b|[Ss]ource: issue\b|\(issue \d+\)"
)
_RULE = re.compile(r"\bR([1-9][0-9]?)\b")
_RULE_HEADING = re.compile(r"^#{2,3} R(\d+) (.+)$", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_FIELDS = ("**Rule.** ", "**Why.** ", "- Enforced in ", "- Tests", "- Mutants")


class Rule(NamedTuple):
    """A section of the page of rules."""

    number: int
    text: str
    is_planned: bool

    def cut(self, field: str) -> str:
        """What stands behind `field`, up to the next item or section."""
        behind = self.text.partition(f"\n{field}")[2]
        return re.split(r"\n(?:- |\n|#)", behind)[0]


def format_headings(page: str) -> set[str]:
    """The headings of a page as they are cited: without back quotes, and what follows a colon."""
    headings = {heading.replace("`", "") for heading in list_headings(page)}
    return headings | {heading.split(": ", 1)[1] for heading in headings if ": " in heading}


def find_heading_faults(path: str, text: str, pages: Mapping[str, str]) -> list[str]:
    """Citations of a page with headings of which one, or the page, is not there.

    Args:
        pages: every page of the repository, by its path.
    """
    faults = []
    flat = _BROKEN_LINE.sub(" ", text)
    for cited, quoted in _HEADINGS.findall(flat):
        page = _find_page(path, cited, pages)
        if page is None:
            faults.append(f"{path}: cites {cited}, which is not there")
            continue
        headings = format_headings(pages[page])
        faults += [
            f'{path}: {page} has no heading "{heading}"'
            for heading in re.findall(r"\"([^\"]+)\"", quoted)
            if heading.replace("`", "") not in headings
        ]
    return faults


def find_page_faults(path: str, text: str, pages: Mapping[str, str]) -> list[str]:
    """Pages that are named and are not there."""
    found = {name for name in re.findall(_PAGE, text) if not _is_an_example(name)}
    missing = sorted(name for name in found if _find_page(path, name, pages) is None)
    return [f"{path}: names {name}, which is not there" for name in missing]


def find_foreign_faults(path: str, text: str) -> list[str]:
    """Sources that lie outside the repository: numbered pages and sections, and issues.

    A section of an RFC is where everybody finds it.
    """
    flat = _BROKEN_LINE.sub(" ", text)
    found = [found[0] for found in _FOREIGN.finditer(flat)]
    return [f"{path}: cites {what}, which is not in the repository" for what in found]


def find_record_faults(path: str, text: str, pages: Collection[str]) -> list[str]:
    """Decision records that are named and are not there, or whose link leads to another one."""
    numbers = {found[1] for page in pages if (found := _RECORD_PAGE.match(page))}
    named = set(_RECORD.findall(_BROKEN_LINE.sub(" ", text)))
    faults = [f"{path}: there is no ADR {number}" for number in sorted(named - numbers)]
    faults += [
        f"{path}: ADR {number} leads to {linked}"
        for number, linked in _RECORD_LINK.findall(text)
        if number != linked
    ]
    return faults


def find_undefined_rules(path: str, text: str, rules: Collection[int]) -> list[str]:
    """Rules that are named and not defined."""
    named = {int(number) for number in _RULE.findall(text)}
    return [f"{path}: R{number} is defined nowhere" for number in sorted(named - set(rules))]


def read_rules(page: str) -> list[Rule]:
    """The sections of the page of rules, in their order."""
    starts = [*_RULE_HEADING.finditer(page)]
    ends = [found.start() for found in starts[1:]] + [len(page)]
    return [
        Rule(int(found[1]), page[found.start() : end], found[2].endswith("(planned)"))
        for found, end in zip(starts, ends, strict=True)
    ]


def find_rule_faults(
    page: str,
    files: Mapping[str, str | None],
    mutants: Mapping[str, str],
) -> list[str]:
    """Sections of the page of rules that lack a part, or name what is not there.

    Args:
        files: every file of the repository, with the text of those that hold tests.
        mutants: every mutant, and the rule that its list says it breaks ("" where it says none).
    """
    rules = read_rules(page)
    numbers = [rule.number for rule in rules]
    faults = []
    if numbers != [*range(1, len(numbers) + 1)]:
        faults.append(f"the rules are {numbers}, not 1, 2, 3, …")
    for rule in rules:
        if f'<a id="r{rule.number}"></a>\n#' not in page:
            faults.append(f"R{rule.number}: no anchor before its heading")
        if not rule.is_planned:
            found = [*_find_missing(rule, files), *_find_wrong_mutants(rule, mutants)]
            faults += [f"R{rule.number}: {fault}" for fault in found]
    return faults


def find_unlisted(page: str, what: str, names: Collection[str]) -> list[str]:
    """Names that the page does not have between back quotes, or at the head of a table's row."""
    listed = {*_CODE.findall(page), *re.findall(r"^\| (\w+) \|", page, re.MULTILINE)}
    return [f"{what} {name} is on no page" for name in names if name not in listed]


def _find_missing(rule: Rule, files: Mapping[str, str | None]) -> Iterator[str]:
    """Parts that are not there, modules and tests that are not there."""
    yield from (f"no {field.strip()}" for field in _FIELDS if f"\n{field}" not in rule.text)
    modules, tests = (_CODE.findall(rule.cut(field)) for field in ("- Enforced in ", "- Tests"))
    if not modules or not tests:
        yield "names no module or no test"
    for name in modules:
        if name not in files:
            yield f"no module {name}"
    for name in tests:
        file, _, function = name.partition("::")
        text = files.get(file)
        is_there = file in files and file.startswith("tests/")
        if not is_there or (function and f"def {function}(" not in (text or "")):
            yield f"no test {name}"


def _find_wrong_mutants(rule: Rule, mutants: Mapping[str, str]) -> Iterator[str]:
    """Mutants that are not there, and those of this rule that are not named."""
    cut = rule.cut("- Mutants")
    named = _CODE.findall(cut)
    if not named and "none yet" not in cut:
        yield "names no mutant, and does not say that there is none yet"
    yield from (f"no mutant {name}" for name in named if name not in mutants)
    own = [name for name, broken in mutants.items() if broken == f"R{rule.number}"]
    yield from (f"does not name its mutant {name}" for name in own if name not in named)


def _find_page(path: str, cited: str, pages: Mapping[str, str]) -> str | None:
    folders = (PurePosixPath(path).parent.as_posix(), *LINKED_FOLDERS)
    candidates = (resolve(folder, cited) for folder in folders)
    return next((page for page in candidates if page in pages), None)


def _is_an_example(name: str) -> bool:
    """Names that are made up where something is shown: `docs/a.md`, or a report of a run."""
    return not name.startswith("docs/") or re.fullmatch(r".*/[a-z]\.md", name) is not None


@cache
def read_texts() -> dict[str, str]:
    """Everything of the repository that people read."""
    names = [p for p in list_paths() if p.endswith(KINDS) or p in {"Makefile", "Dockerfile"}]
    return {
        name: (ROOT / name).read_text(encoding="utf-8")
        for name in names
        if not (ROOT / name).is_symlink()
    }


@cache
def read_pages() -> dict[str, str]:
    return {path: text for path, text in read_texts().items() if path.endswith(".md")}
