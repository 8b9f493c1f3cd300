"""The quick starts of docs/ do what they say, block by block, on one real cluster.

A page that is wrong fails with the block, what it shows and what was printed. How blocks are read
is `pages`'s matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.process.cluster import LocalCluster, running_cluster
from tests.process.pages import DOCS, Step, check_shown, read_page, run_page
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.timeout(3 * HANG_S)]

PAGES = sorted(path.name for path in DOCS.glob("quickstart*.md"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("quickstart") / "data"
    with running_cluster(folder, "--cors-origin", "http://localhost:8000") as started:
        yield started


def wait_whole(cluster: LocalCluster) -> None:
    """A page may kill what it likes; the next one begins where the sequencer reaches all again."""
    (sequencer,) = cluster.ids("sequencer")
    cluster.wait_ready(*cluster.ids("bookie"), sequencer)

    def are_reached() -> bool:
        url = cluster.process(sequencer)["admin_url"] + "/v1/statistics"
        answer = httpx.get(url, timeout=30, verify=cluster.trust_admin_ports())
        unreached: list[str] = answer.json()["unreached_bookies"]
        return not unreached

    wait_in_thread(are_reached, HANG_S, "all bookies to be reached")


@pytest.mark.parametrize("name", PAGES)
def test_a_quick_start_does_what_it_says(name: str, cluster: LocalCluster, tmp_path: Path) -> None:
    wait_whole(cluster)
    state = cluster.state()
    addresses = {
        "localhost:7301": state["write_url"].removeprefix("http://"),
        "localhost:7401": state["read_url"].removeprefix("http://"),
    }
    run_page((DOCS / name).read_text(encoding="utf-8"), tmp_path, cluster.folder, addresses)


def test_a_page_that_is_wrong_is_seen() -> None:
    page = read_page("```sh start\nx\n```\n```sh\na\nb\n```\n```text\n1 … 3\n```\n")
    assert page.steps == [Step("a\nb\n", "1 … 3\n")]
    check_shown(page.steps[0], "1 and 2 and 3\n")
    with pytest.raises(AssertionError, match="but printed"):
        check_shown(page.steps[0], "1 and 2\n")
    for text in ("```sh\na\n```\n", "```sh start\n```\n```ruby\n```\n", "```text\n1\n```\n"):
        with pytest.raises(AssertionError):
            read_page(text)
