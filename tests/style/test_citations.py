"""What is cited is there: pages, headings, rules, and all that the page of rules names.

Reads the files that `test_tidy` reads. Each rule of `citations.py` has a proof here that it can
fail; what is planted is made up of parts, so that this file does not find itself.
"""

import re
import tomllib
from functools import cache

import pytest

from tests.style import citations
from tests.style.citations import RULES_PAGE, read_pages, read_texts
from tests.style.tree import assert_tidy, list_paths

PRODUCT = ("libs/", "services/", "operator/", "spark-jobs/", "charts/", "docs/", "tests/")
ANCHOR = '<a id="r1"></a>\n'
GOOD = (
    ANCHOR + "## R1 A rule\n**Rule.** So.\n\n**Why.** Else.\n\n- Enforced in `libs/a.py`\n"
    "- Tests `tests/test_a.py::test_a`, `tests/a.txt`\n- Mutants `one`, `two`\n"
)
FILES = {"libs/a.py": None, "tests/test_a.py": "def test_a() -> None:", "tests/a.txt": ""}
MUTANTS = {"one": "R1", "two": "", "three": "R2"}
PAGES = {
    "docs/protocol/a.md": "# A\n## The `first` one\n## Sequencer: the second\n",
    "README.md": '# Read\n<a id="r7"></a>\n## Two words (R7)\n',
}
PAGE = "docs/protocol/a" + ".md"


@cache
def list_mutants() -> dict[str, str]:
    """Every mutant of the three lists, with its rule where its list says one."""
    found: dict[str, str] = {}
    for path, text in read_texts().items():
        if path.startswith("tests/sim/mutants/"):
            found |= dict(re.findall(r"^    \"([a-z0-9-]+)\": Mutant\(\s*\"([^\"]+)\"", text, re.M))
        elif path == "tests/explore/mutants.py":
            found |= dict.fromkeys(re.findall(r"Scenario\(\"([a-z0-9-]+)\"", text), "")
        elif path.startswith("tests/mutants_services/faults/"):
            files = tomllib.loads(text)["file"]
            found |= {fault["name"]: "" for file in files for fault in file["fault"]}
    return found


# --- The repository ------------------------------------------------------------------------------


def test_the_lists_of_mutants_are_found() -> None:
    found = list_mutants()
    assert found["stale-acks-kept"] == "R7"
    assert {"r7-stale-acks", "owed-range-shrinks"} <= set(found)


def test_every_rule_says_what_holds_it_and_all_of_that_is_there() -> None:
    texts = read_texts()
    files = {path: texts.get(path) for path in list_paths()}
    assert_tidy(citations.find_rule_faults(read_pages()[RULES_PAGE], files, list_mutants()))


def test_every_mutant_of_the_simulator_breaks_a_promise_that_is_written_down() -> None:
    names = [name for name, rule in list_mutants().items() if rule]
    assert len(names) >= 60
    assert_tidy(citations.find_unlisted(read_pages()[RULES_PAGE], "the mutant", names))


def test_every_invariant_that_is_judged_is_written_down() -> None:
    text = read_texts()["tests/sim/segment_record.py"]
    (codes,) = re.findall(r"^CODES: Final = \(([^)]*)\)", text, re.MULTILINE)
    names = [code for code in re.findall(r"\"(\w+)\"", codes) if not code.startswith("R")]
    assert {"D1", "K1"} <= set(names)
    page = read_pages()["docs/testing.md"]
    assert_tidy(citations.find_unlisted(page, "the invariant", names))


def test_every_rule_that_is_named_is_defined() -> None:
    rules = [rule.number for rule in citations.read_rules(read_pages()[RULES_PAGE])]
    assert len(rules) >= 21
    texts = [(path, text) for path, text in read_texts().items() if path.startswith(PRODUCT)]
    faults = [f for path, text in texts for f in citations.find_undefined_rules(path, text, rules)]
    assert_tidy(faults)


def test_every_heading_that_is_cited_is_there() -> None:
    pages = read_pages()
    faults = [
        fault
        for path, text in read_texts().items()
        for fault in citations.find_heading_faults(path, text, pages)
    ]
    assert_tidy(faults)


def test_every_page_that_is_named_is_there() -> None:
    pages = read_pages()
    faults = [
        fault
        for path, text in read_texts().items()
        for fault in citations.find_page_faults(path, text, pages)
    ]
    assert_tidy(faults)


def test_every_source_is_in_the_repository() -> None:
    texts = read_texts().items()
    assert_tidy([f for path, text in texts for f in citations.find_foreign_faults(path, text)])


def test_every_decision_record_that_is_named_is_there() -> None:
    pages = read_pages()
    texts = read_texts().items()
    assert_tidy(
        [f for path, text in texts for f in citations.find_record_faults(path, text, pages)]
    )


# --- Each rule can fail --------------------------------------------------------------------------


def test_a_good_rule_has_no_faults() -> None:
    assert citations.find_rule_faults(GOOD, FILES, MUTANTS) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (ANCHOR, "", "no anchor"),
        ("## R1", "## R2", "the rules are [2]"),
        ("**Rule.** So.", "So.", "no **Rule.**"),
        ("**Why.** Else.", "", "no **Why.**"),
        ("`libs/a.py`", "`libs/b.py`", "no module libs/b.py"),
        ("`libs/a.py`", "nothing", "names no module"),
        ("::test_a`", "::test_b`", "no test tests/test_a.py::test_b"),
        ("::test_a`", "::test`", "no test tests/test_a.py::test"),
        ("`tests/a.txt`", "`tests/b.txt`", "no test tests/b.txt"),
        ("`tests/a.txt`", "`libs/a.py`", "no test libs/a.py"),
        ("`two`", "`four`", "no mutant four"),
        ("`one`, ", "", "does not name its mutant one"),
        ("`one`, `two`", "", "names no mutant"),
    ],
)
def test_a_rule_that_lacks_something_is_found(old: str, new: str, fault: str) -> None:
    assert old in GOOD
    found = citations.find_rule_faults(GOOD.replace(old, new), FILES, MUTANTS)
    assert any(fault in each for each in found), found


def test_a_planned_rule_needs_nothing_but_its_anchor() -> None:
    planned = '<a id="r2"></a>\n### R2 Later (planned)\nWhat it will say.\n'
    assert citations.find_rule_faults(GOOD + planned, FILES, MUTANTS) == []
    assert citations.find_rule_faults(GOOD + planned.replace(" (planned)", ""), FILES, MUTANTS)
    assert citations.find_rule_faults(GOOD + planned.partition("\n")[2], FILES, MUTANTS)


def test_a_name_that_is_on_no_page_is_found() -> None:
    page = "| D1 | it stays |\n\nThe mutants `one`, `two`. D2 and three are not listed.\n"
    assert not citations.find_unlisted(page, "the name", ["D1", "one", "two"])
    found = citations.find_unlisted(page, "the name", ["D1", "D2", "three"])
    assert found == ["the name D2 is on no page", "the name three is on no page"]


def test_a_rule_that_is_defined_nowhere_is_found() -> None:
    assert citations.find_undefined_rules("libs/a.py", "R1–R3, R" + "31", [1, 2, 3]) == [
        "libs/a.py: R" + "31 is defined nowhere"
    ]
    assert not citations.find_undefined_rules("libs/a.py", "R1 R3, PR7, R0, R3D2", [1, 3])


@pytest.mark.parametrize(
    "cited",
    [
        '"The first one"',
        '"The `first` one"',
        '"A" and "the second"',
        '"A", "The first one".',
        '\n    # "A"',
        '("A")',
    ],
)
def test_a_heading_that_is_there_is_let_through(cited: str) -> None:
    assert not citations.find_heading_faults("libs/a.py", f"Source: {PAGE} {cited}", PAGES)


@pytest.mark.parametrize(
    "cited",
    [
        f'{PAGE} "The third one"',
        f'{PAGE}, "The third one"',
        f'{PAGE}\n"The third one"',
        f'{PAGE} "A" and "The third one"',
        f'[a]({"a" + ".md"}) "The third one"',
        "docs/protocol/b" + '.md "A"',
    ],
)
def test_a_heading_that_is_not_there_is_found(cited: str) -> None:
    path = "docs/protocol/c" + ".md"
    assert len(citations.find_heading_faults(path, f"Source: {cited}, R1.", PAGES)) == 1


def test_a_page_that_is_not_there_is_found() -> None:
    found = citations.find_page_faults("libs/a.py", f"See {PAGE}, docs/beyond" + ".md.", PAGES)
    assert found == ["libs/a.py: names docs/beyond" + ".md, which is not there"]


@pytest.mark.parametrize(
    "cited",
    [
        "0" + '9-somewhere "Else"',
        "R3, sec" + "tion 5 (roll).",
        "sec" + "tions 2 and 4",
        "Source:\n    iss" + 'ue "A thing".',
        "(iss" + "ue 6)",
    ],
)
def test_a_source_that_lies_elsewhere_is_found(cited: str) -> None:
    (fault,) = citations.find_foreign_faults("libs/a.py", f"Called by `b`. Source: {cited}")
    assert fault.startswith("libs/a.py: cites ")


def test_what_everybody_finds_is_let_through() -> None:
    good = "RFC 9110 section 8.4, a section of a page, 0001-one.md, 2026-01-02, 0x00-abc"
    assert not citations.find_foreign_faults("libs/a.py", good)


def test_a_decision_record_that_is_not_there_is_found() -> None:
    folder = "docs/" + "adr/"
    records = [folder + "0001-one.md", folder + "0002-two.md"]
    good = "ADR 0001, [ADR 0002](../adr/0002-two.md), ADR\n    0001"
    assert not citations.find_record_faults("libs/a.py", good, records)
    bad = "ADR 00" + "03, [ADR 0001](" + folder + "0002-two.md)"
    assert citations.find_record_faults("libs/a.py", bad, records) == [
        "libs/a.py: there is no ADR 00" + "03",
        "libs/a.py: ADR 0001 leads to 0002",
    ]
