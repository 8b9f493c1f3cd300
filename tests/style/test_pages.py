"""Every page is reached, every link leads somewhere, and `make docs` remakes what is made.

Reads the files that `test_tidy` reads. Each rule of `pages.py` has a proof here that it can fail;
what is planted is made up of parts, so that this file does not find itself.
"""

import pytest

from tests.style import pages
from tests.style.citations import read_pages, read_texts
from tests.style.tree import assert_tidy, list_paths

MD = ".md"
DEEP = f"docs/deep/a{MD}"
INDEX = f"[a](deep/a{MD}) [b](deep/b{MD}#two) [root](../README{MD}) [deep](deep/)"
PLANTED = {
    f"README{MD}": f'# Read\n<a id="r7"></a>\n## Two words (R7)\nSee [docs](docs/README{MD}).\n',
    f"docs/README{MD}": INDEX,
    DEEP: "# A\n## Again\n```sh\n# no heading\n```\n## Again\n## [Linked](b) `code`\n",
    f"docs/deep/b{MD}": "# B\n## Two\n",
    f"docs/deep/README{MD}": "# Deep\n",
}
FILES = [*PLANTED, "charts/values.yaml"]
REWRITING = 'if os.environ.get("DURAMEN_' + 'REWRITE") == "1":\n    write()\n'
CHECKING = "def test_a() -> None:\n    check_" + 'section("a", "b", "c")\n'


# --- The repository ------------------------------------------------------------------------------


def test_every_page_can_be_reached() -> None:
    assert_tidy(pages.find_unreachable(read_pages()))


def test_the_index_has_every_page() -> None:
    assert_tidy(pages.find_unindexed(read_pages()))


def test_every_link_leads_somewhere() -> None:
    files = set(list_paths())
    texts = read_pages()
    assert_tidy(
        [
            fault
            for path, text in texts.items()
            for fault in pages.find_link_faults(path, text, texts, files)
        ]
    )


def test_make_docs_remakes_every_page_that_is_made() -> None:
    texts = read_texts()
    tests = {path: text for path, text in texts.items() if path.startswith("tests/")}
    assert_tidy(pages.find_unmade(texts["Makefile"], tests))


# --- Each rule can fail --------------------------------------------------------------------------


def test_good_pages_have_no_faults() -> None:
    assert not pages.find_unreachable(PLANTED)
    assert not pages.find_unindexed(PLANTED)
    for path, text in PLANTED.items():
        if path != DEEP:
            assert not pages.find_link_faults(path, text, PLANTED, FILES)


@pytest.mark.parametrize(
    "link",
    [
        f"[b](b{MD})",
        f"[b](b{MD}#two)",
        f'[b](b{MD} "a title")',
        f"[`b`](b{MD})",
        f"[b]: b{MD}",
        "[here](#again)",
        "[the second](#again-1)",
        "[here](#linked-code)",
        f"[up](../../README{MD}#r7)",
        f"[up](../../README{MD}#two-words-r7)",
        "[folder](../deep)",
        "[folder](../deep/)",
        "[file](../../charts/values.yaml)",
        "[elsewhere](https://example.com/a#b)",
        f"`[quoted](c{MD})`",
        f"```\n[fenced](c{MD})\n```",
    ],
)
def test_a_link_that_leads_somewhere_is_let_through(link: str) -> None:
    assert not pages.find_link_faults(DEEP, PLANTED[DEEP].replace("(b)", "") + link, PLANTED, FILES)


@pytest.mark.parametrize(
    "link",
    [
        f"[c](c{MD})",
        f"[c]: c{MD}",
        f"`code` [c](c{MD}) `code`",
        f"[b](b{MD}#three)",
        "[here](#no-heading)",
        "[here](#again-2)",
        f"[up](../../README{MD}#r8)",
        f"[out](../../../../README{MD})",
        f"[rooted](/README{MD})",
        "[folder](../../charts/)",
        "[file](../../charts/other.yaml)",
        "[line](../../charts/values.yaml#L3)",
    ],
)
def test_a_link_that_leads_nowhere_is_found(link: str) -> None:
    assert len(pages.find_link_faults(DEEP, f"# A\n## Again\n{link}\n", PLANTED, FILES)) == 1


def test_a_page_that_no_links_lead_to_is_found() -> None:
    islands = {f"docs/c{MD}": f"[d](d{MD})", f"docs/d{MD}": f"[c](c{MD}) [home](../README{MD})"}
    assert pages.find_unreachable(PLANTED | islands) == [
        f"docs/{name}{MD}: no links lead there from README{MD}" for name in "cd"
    ]


def test_a_page_that_is_not_in_the_index_is_found() -> None:
    more = {f"docs/deep/README{MD}": f"[c](c{MD})", f"docs/deep/c{MD}": "# C\n"}
    assert not pages.find_unreachable(PLANTED | more)
    assert pages.find_unindexed(PLANTED | more) == [
        f"docs/deep/c{MD}: docs/README{MD} has no link to it"
    ]


@pytest.mark.parametrize("text", [REWRITING, CHECKING])
def test_a_page_that_is_not_remade_is_found(text: str) -> None:
    tests = {"tests/test_a.py": f"def test_a() -> None: ...\n{text}"}
    assert not pages.find_unmade("pytest tests/test_a.py::test_a", tests)
    assert len(pages.find_unmade("pytest tests/test_b", tests)) == 1
    assert len(pages.find_unmade("pytest tests/test_a.py::test_b", tests)) == 1
    assert not pages.find_unmade("", {"tests/scenario/a.py": text})
