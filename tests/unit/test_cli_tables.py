"""Nothing that a person would copy is cut: every table of every command, at 80 and 60 columns and
in a pipe.

A fake proxy answers with names as long as clusters have them; each text that names something has to
stand in the output whole, on one line. A column that a narrow terminal has no room for is named.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import duramen.cli
from duramen.cli.live.view import render, summarize
from duramen.cli.main import main
from duramen.cli.programs.run import show_cluster
from duramen.cli.shell.tables import lay_out
from duramen.cluster.cluster_file import ClusterProcess, ClusterState
from duramen.cluster.layout import ClusterSize
from duramen.cluster.supervisor import ClusterOptions
from tests.unit.fake_proxy import FakeProxy, running_proxy

WIDTHS = (80, 60, None)
LONG_LOG = "orders-of-all-shops/till-04.receipts.and.returns"
BOOKIES = [
    {
        "id": f"duramen-bookie-zone-{zone}-{index}", "incarnation": f"{zone}{index}" * 16,
        "region": "eu-central-1", "rack": f"eu-central-1{zone}", "state": "rw", "duty": "serving",
        "weight": 1.0, "free_bytes": 123_456_789_012, "doubtful": False, "takes_new_data": True,
    }
    for zone in "ab"
    for index in (0, 1)
]  # fmt: skip
OWNED = {
    "log_id": "1", "name": LONG_LOG, "sequencer": "duramen-sequencer-eu-central-1a-0",
    "epoch": 1234, "state": "active", "appends_per_s": 20_000.5, "bytes_per_s": 3_000_000_123,
    "unanswered_count": 4,
}  # fmt: skip
OWNERS = {"logs": [OWNED], "sequencers": [{"id": OWNED["sequencer"], "weight": 1.0}], "silent": []}
MOVE = {"name": LONG_LOG, "from": "sequencer-0", "to": "sequencer-1", "cost": 1.5}
REGION = {"region": "eu-central-1", "bookies": 4, "takes_new_data": True, "closed": False}
SEGMENT = {
    "epoch": 17, "ledger_id": "73014444049", "state": "CLOSED", "status": "LIVE",
    "records": 123_456_789, "bytes": 268_435_456, "start_seq_num": 9_007_199_254, "last_entry": 9,
    "lost": [[1, 2]], "created": "2026-11-21T03:57:06.350Z",
    "completed": "2026-11-21T04:57:06.350Z", "hot_copies": "kept", "cold_copy": None,
    "ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2, "fragments": [],
}  # fmt: skip
SHOWN_AS_TIMES = {"created", "completed"}

TABLES: dict[str, tuple[list[str], dict[str, Any], set[str]]] = {
    "owners": (
        ["owners"], {"/v1/cluster/owners": OWNERS},
        {LONG_LOG, str(OWNED["sequencer"]), "1234", "3000000123"},
    ),
    "balance": (
        ["balance", "--dry-run"], {"/v1/cluster/balance": {"moves": [MOVE]}},
        {LONG_LOG, "sequencer-0", "sequencer-1"},
    ),
    "bookies": (
        ["bookies"], {"/v1/cluster/bookies": {"bookies": BOOKIES}},
        {str(one[name]) for one in BOOKIES for name in ("id", "incarnation", "region", "rack")},
    ),
    "regions": (
        ["regions"], {"/v1/cluster/regions": {"regions": [REGION]}}, {"eu-central-1"},
    ),
    "segments": (
        ["segments", "shop/orders"],
        {"/v1/namespaces/shop/logs/orders/segments": {"segments": [SEGMENT]}},
        {"17", "123456789", "268435456", "9007199254", *(str(SEGMENT[n]) for n in SHOWN_AS_TIMES)},
    ),
    "sql": (
        ["sql", "select * from bookies"], {"/v1/cluster/bookies": {"bookies": BOOKIES}},
        {str(one[name]) for one in BOOKIES for name in ("id", "incarnation", "free_bytes")},
    ),
}  # fmt: skip
"""Command → its line, what the proxy answers, and what has to be there whole."""


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProxy]:
    with running_proxy() as server:
        monkeypatch.setenv("DURAMEN_URL", server.url)
        monkeypatch.setenv("DURAMEN_ADMIN_URL", server.url)
        yield server


@pytest.fixture(params=WIDTHS, ids=["80 columns", "60 columns", "in a pipe"])
def width(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> int | None:
    """The width of the terminal that standard output is; None: it is a pipe."""
    found: int | None = request.param
    assert capsys  # which puts its own standard output in place first
    if found is not None:
        monkeypatch.setenv("COLUMNS", str(found))
        monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    return found


def check_whole(shown: str, wanted: set[str], width: int | None) -> None:
    words = set(shown.split())
    assert not (cut := {text for text in wanted if text not in words}), cut
    if width is not None:
        too_long = [line for line in shown.splitlines() if len(line) > width]
        assert all(len(line.split()) <= 2 for line in too_long), "one name alone may be longer"


def hidden_of(said: str, rows: Sequence[dict[str, Any]]) -> set[str]:
    """The values of columns that are said to have no room."""
    found = re.search(r"no room for (.*): ", said)
    names = found[1].split(", ") if found else []
    return {str(row[name]) for row in rows for name in names}


@pytest.mark.parametrize("name", list(TABLES))
def test_names_and_numbers_are_whole_at_any_width(
    name: str, width: int | None, proxy: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    line, answers, wanted = TABLES[name]
    proxy.answers |= answers
    assert main(line) == 0
    captured = capsys.readouterr()
    rows = {"bookies": BOOKIES, "segments": [SEGMENT]}.get(name, [])
    hidden = hidden_of(captured.err, rows)
    assert hidden <= wanted and (width is not None or not hidden)
    check_whole(captured.out, wanted - hidden, width)


def test_a_cluster_that_is_ready_shows_every_pid_and_port(
    width: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = tuple(
        ClusterProcess(
            "bookie", f"bookie-{index}", 4_190_000 + index, None, "a-long-region", "a-long-rack",
            f"http://127.0.0.1:{20_000 + index}", f"http://127.0.0.1:{30_000 + index}", None, "",
        )
        for index in range(12)
    )  # fmt: skip
    state = ClusterState("local", "127.0.0.1:2181", members)
    show_cluster(state, ClusterOptions(tmp_path, ClusterSize(bookies=12)))
    wanted = {
        text for one in members for text in (one.node_id, str(one.pid), one.data_url, one.admin_url)
        if text is not None
    }  # fmt: skip
    check_whole(capsys.readouterr().out, {*wanted, str(tmp_path / "cluster.json")}, width)


@pytest.mark.parametrize("columns", [80, 60, 40, None])
def test_top_names_everything_whole(columns: int | None) -> None:
    moment = summarize({"owners": OWNERS, "bookies": {"bookies": BOOKIES}, "repair": "no answer"})
    lines = render(moment, columns=columns, lines=None if columns is None else 200)
    names = {LONG_LOG, str(OWNED["sequencer"]), *(str(one["id"]) for one in BOOKIES)}
    check_whole("\n".join(lines), names, columns)
    few = render(moment, columns=columns, lines=5) if columns else lines[:5]
    assert few == lines[: len(few)] and len(few) <= 5


def test_a_line_that_takes_three_of_the_screen_counts_three_times() -> None:
    moment = summarize(
        {"owners": {**OWNERS, "logs": [{**OWNED, "name": "n" * 70}], "sequencers": []}}
    )
    whole = render(moment, columns=40, lines=1000)
    at = next(index for index, line in enumerate(whole) if "n" * 70 in line)
    assert len(whole[at]) == 85, "a name of 70 beside the word LOG: three lines of the screen"
    assert whole[:at] == render(moment, columns=40, lines=at + 2)
    assert whole[: at + 1] == render(moment, columns=40, lines=at + 3)


WORD = st.text("abcdefgh0123456789-/:.", min_size=1, max_size=24)
CELL = st.one_of(WORD, st.lists(WORD, min_size=2, max_size=6).map(" ".join))


@given(
    rows=st.integers(1, 5).flatmap(
        lambda count: st.lists(st.lists(CELL, min_size=count, max_size=count), min_size=1)
    ),
    width=st.one_of(st.none(), st.integers(20, 120)),
    dropped=st.integers(0, 5),
)
def test_every_word_of_a_table_is_whole_or_its_column_left_out(
    rows: list[list[str]], width: int | None, dropped: int
) -> None:
    columns = [f"column{index}" for index in range(len(rows[0]))]
    table = lay_out(columns, rows, width, columns[1 : 1 + dropped])
    words = [word for line in table.lines for word in line.split()]
    for index, name in enumerate(columns):
        if name in table.left_out:
            assert name not in words and width is not None
            continue
        assert name in words
        for row in rows:
            assert all(word in words for word in row[index].split())
    is_block = len(table.lines) == len(rows) * (len(columns) + 1) - 1
    if width is not None and not is_block:
        assert max(map(len, table.lines)) <= width
    if width is None:
        assert len(table.lines) == 1 + len(rows) and not table.left_out


def test_nothing_of_the_command_line_makes_tables_that_cut() -> None:
    """A library's table shortens what has no room: none is made beside ours."""
    folder = Path(duramen.cli.__file__).parent
    sources = {path: path.read_text() for path in folder.rglob("*.py")}
    assert len(sources) > 20
    of_rich = ("rich.table", "rich import box", "console.print")
    assert not [path for path, word in itertools.product(sources, of_rich) if word in sources[path]]
