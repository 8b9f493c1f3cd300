"""What every command promises, asked of every command: exit codes, `--json`, advice, documents.

The commands are found by walking the application, so that a new one is asked too. docs/cli.md has
sections made here from the code; `make docs` rewrites them, as for docs/protocol/errors.md.
"""

from __future__ import annotations

import inspect
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cyclopts import App

import duramen_spark.main
import kubectl_duramen.main
from duramen.cli.append import FACTS as APPEND_FACTS
from duramen.cli.command import ExitCode
from duramen.cli.declare.documents import read_documents
from duramen.cli.declare.plan import make_plan
from duramen.cli.live.query import Database
from duramen.cli.live.tables import TABLES
from duramen.cli.main import app, main
from duramen.cli.shell.advice import ADVICE, advise
from duramen.cli.shell.frame import find_facts
from duramen.cli.shell.help import PLAIN, unfold_help
from duramen.cluster.cluster_file import ClusterFileError
from duramen.errors import ERRORS, DuramenError
from duramen.runtime.http_client import (
    DeniedError,
    PeerError,
    UnreachableError,
    UntrustedPeerError,
)
from tests.unit.document_sections import DOCS, check_section

ARGUMENTS = {
    "accept-loss": ["b", "--incarnation", "0" * 32],
    "append": ["a/b", "/dev/null", "--create", "--timeout", "0"],
    "apply": ["-f", "-"],
    "audit show": ["--timeout", "0"],
    "audit verify": ["--timeout", "0"],
    "bookies locate": ["b", "--rack", "r"],
    "completion": ["bash"],
    "disruption": ["b", "--kind", "restart"],
    "drain": ["b"],
    "grant give": ["user:corp/ann", "reader", "shop"],
    "grant take": ["user:corp/ann", "reader", "shop"],
    "hand-over": ["a/b"],
    "log reconfigure": ["a/b", "--config", "{}"],
    "log truncate": ["a/b", "--to", "head"],
    "maintenance": ["on"],
    "namespace create": ["a"],
    "namespace show": ["a"],
    "namespace reconfigure": ["a", "--config", "{}"],
    "namespace delete": ["a"],
    "read": ["a/b", "--timeout", "0"],
    "regions close": ["r"],
    "regions open": ["r"],
    "sql": ["select * from bookies"],
    "tail": ["a/b", "--timeout", "0"],
    "token create": ["--scope", "read:shop", "--expires", "1h"],
    "token revoke": ["a" * 16],
    "top": ["--once"],
    "weigh": ["s", "--sequencer-weight", "1"],
}
"""What a command cannot do without, where that is not `a/b` or nothing."""

HANDED_OVER = (
    *[f"archive {job}" for job in ("run", "verify", "compact", "restore", "export", "retention")],
    "bench journal",
    "bench bookie",
)
"""Become another program, whose arguments and codes these are."""

OF_FOLDERS = (
    *(
        f"ca {verb}"
        for verb in (
            "init",
            "issue",
            "revoke",
            "publish",
            "announce",
            "switch",
            "retire",
            "list",
            "show",
        )
    ),
    *("access apply", "access check", "access open", "access token"),
)
"""Ask nobody: `tests/component/test_identity_folder.py` has what they do."""

OF_CONTEXTS = tuple(f"context {verb}" for verb in ("add", "use", "list", "remove", "env"))
"""`test_cli_contexts` has what they do."""

OF_THIS_MACHINE = (
    *("run", "completion", "apply", "verify", "log rebuild"),
    *OF_FOLDERS,
    *OF_CONTEXTS,
    *HANDED_OVER,
)
"""Ask no proxy, or something else first."""


def walk(found: App, prefix: str = "") -> Iterator[tuple[str, App]]:
    """Every command with its words."""
    for name in found:
        if name.startswith("-"):
            continue
        below = found[name]
        words = f"{prefix}{name}"
        if below.default_command is not None:
            yield words, below
        yield from walk(below, f"{words} ")


COMMANDS = dict(walk(app))


def function_of(words: str) -> Callable[..., Any]:
    function = COMMANDS[words].default_command
    assert function is not None
    return function


def help_of(words: str) -> str:
    return inspect.getdoc(function_of(words)) or ""


def arguments_of(words: str) -> list[str]:
    if words in ARGUMENTS:
        return [*words.split(), *ARGUMENTS[words]]
    takes_log = "log" in inspect.signature(function_of(words)).parameters
    return [*words.split(), *(["a/b"] if takes_log else [])]


def codes_of(words: str) -> dict[int, str]:
    """Exit code → when, as the command's help says."""
    text = " ".join(help_of(words).split())
    _, found, codes = text.partition("Exit codes: ")
    assert found, f"{words}: its help does not say its exit codes"
    pairs = [part.partition(" ") for part in re.split(r"; (?=\d)", codes.rstrip("."))]
    return {int(code): meaning for code, _, meaning in pairs}


@pytest.mark.parametrize("words", list(COMMANDS))
def test_the_help_says_which_exit_codes_there_are(words: str) -> None:
    codes = codes_of(words)
    assert set(codes) <= {int(code) for code in ExitCode}
    assert ExitCode.OK in codes and ExitCode.USAGE in codes
    assert all(codes.values())


OTHER_APPS = {"duramen-spark": duramen_spark.main.app, "kubectl duramen": kubectl_duramen.main.app}
EVERY_COMMAND = {("duramen", words): one for words, one in COMMANDS.items()} | {
    (name, words): one for name, other in OTHER_APPS.items() for words, one in walk(other)
}


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize(("name", "words"), list(EVERY_COMMAND))
def test_a_help_has_every_character_of_its_source(
    name: str,
    words: str,
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is taken for markup: `<data>/cold`, `duramen[run]`, `*`, `$DURAMEN_URL`."""
    monkeypatch.setenv("COLUMNS", str(columns))
    command = EVERY_COMMAND[name, words]
    ({"duramen": app} | OTHER_APPS)[name].help_print(words.split())
    shown = re.sub(r"[\s│]", "", capsys.readouterr().out)
    assert command.default_command is not None
    for paragraph in (inspect.getdoc(command.default_command) or "").split("\n\n"):
        assert "".join(paragraph.split()) in shown, paragraph
    for one in command.assemble_argument_collection(parse_docstring=False):
        for word in (one.parameter.help or "").split() if one.show and one.parse else ():
            assert word in shown, (word, one.name)  # names of flags may stand between two lines


def test_a_help_that_looks_like_markup_is_shown_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def odd() -> int:
        """Do [it] with <data>/cold, `code`, *stars* and duramen[run].

        This is a paragraph of [two]
        lines.
        """
        return 0

    other = App(name="other", help_format=PLAIN, result_action="return_value")
    other.command(odd)
    unfold_help(other)
    other(["odd", "--help"])
    shown = capsys.readouterr().out
    assert "Do [it] with <data>/cold, `code`, *stars* and duramen[run]." in shown
    assert "This is a paragraph of [two] lines." in shown


@pytest.mark.parametrize("words", [words for words in COMMANDS if words not in HANDED_OVER])
def test_what_makes_no_sense_is_usage(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments_of(words), "--no-such-flag"]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == "" and "no-such-flag" in captured.err


@pytest.mark.parametrize("words", [words for words in COMMANDS if words not in OF_THIS_MACHINE])
def test_a_cluster_that_is_not_there_is_failure_with_advice(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        for variable in ("DURAMEN_URL", "DURAMEN_ADMIN_URL"):
            monkeypatch.setenv(variable, f"http://127.0.0.1:{unused.getsockname()[1]}")
        assert main([*arguments_of(words), "--json"]) == ExitCode.FAILED
    said = capsys.readouterr().err
    assert "next: see that the cluster runs" in said and "Traceback" not in said
    assert ExitCode.FAILED in codes_of(words)


@pytest.mark.parametrize("words", list(COMMANDS))
def test_every_command_has_an_output_for_programs(words: str) -> None:
    has_json = "json" in inspect.signature(function_of(words)).parameters
    assert has_json == (words not in ("completion", *HANDED_OVER))


def test_every_error_says_what_to_do_next() -> None:
    assert set(ADVICE) == set(ERRORS)
    facts = find_facts(app, ["read"])
    assert advise(DuramenError("log_not_found", "x"), facts) == ADVICE["log_not_found"]
    assert "duramen run" in str(advise(UnreachableError("x"), facts))
    assert "who issued its own" in str(advise(UntrustedPeerError("x"), facts))
    assert advise(DeniedError("x"), facts) == ADVICE["unauthenticated"]
    assert "--url" in str(advise(ClusterFileError("x"), facts))
    assert advise(OSError("the text of the system says it")) is None


@pytest.mark.parametrize("words", [words for words in COMMANDS if words not in HANDED_OVER])
def test_advice_speaks_of_what_the_command_has(words: str) -> None:
    """Nobody who truncates is told to use --follow, and nobody's variable is another one's."""
    facts = find_facts(app, words.split())
    errors: list[Exception] = [DuramenError(code, "x") for code in ERRORS]
    errors += [
        UntrustedPeerError("x"),
        DeniedError("x"),
        UnreachableError("x"),
        PeerError("x"),
        ClusterFileError("x"),
    ]
    for error in errors:
        said = advise(error, facts) or ""
        flags = set(re.findall(r"--[a-z-]+", said)) - {"--help", "--version"}
        assert flags <= facts.flags, (words, said)
        assert set(re.findall(r"DURAMEN_\w+", said)) <= set(facts.variables), (words, said)


def test_the_facts_of_append_are_those_of_the_command() -> None:
    facts = find_facts(app, ["append"])
    assert facts.flags >= APPEND_FACTS.flags and facts.variables == APPEND_FACTS.variables
    flags = {flag for one in ADVICE.values() for flag in re.findall(r"--[a-z-]+", str(one))}
    assert flags & facts.flags <= APPEND_FACTS.flags


@pytest.mark.parametrize("words", [words for words in COMMANDS if words not in OF_THIS_MACHINE])
def test_a_server_that_is_not_there_is_looked_for_where_it_was_named(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The two variables lead to two ports that nobody listens on; the sentence has one of them."""
    with socket.socket() as public, socket.socket() as admin:
        variables = {"DURAMEN_URL": public, "DURAMEN_ADMIN_URL": admin}
        for variable, unused in variables.items():
            unused.bind(("127.0.0.1", 0))  # and does not listen
            monkeypatch.setenv(variable, f"http://127.0.0.1:{unused.getsockname()[1]}")
        assert main(arguments_of(words)) == ExitCode.FAILED
        said = capsys.readouterr().err
        found = re.search(r"cannot connect to http://127.0.0.1:(\d+)", said)
        assert found is not None and "Traceback" not in said
        (used,) = [name for name, one in variables.items() if one.getsockname()[1] == int(found[1])]
    assert f"${used}" in said.split("next: ")[1]
    for variable in set(variables) - {used}:
        assert f"${variable}" not in said or words == "sql", "sql alone asks two servers"


# --- docs/cli.md ---------------------------------------------------------------------------------


def format_codes() -> str:
    lines = ["| code | meaning |", "|---|---|"]
    lines += [f"| {int(code)} | {code.meaning} |" for code in ExitCode]
    return "\n".join(lines) + "\n"


def format_commands() -> str:
    lines = ["| command | what | exit codes |", "|---|---|---|"]
    for words in COMMANDS:
        what = help_of(words).split("\n\n")[0].replace("\n", " ")
        codes = "; ".join(f"{code} {when}" for code, when in codes_of(words).items())
        lines.append(f"| `{words}` | {what} | {codes} |".replace("bash|zsh", "bash\\|zsh"))
    return "\n".join(lines) + "\n"


def format_tables() -> str:
    lines = ["| table | column | type | |", "|---|---|---|---|"]
    for table in TABLES.values():
        lines.append(f"| `{table.name}` | | | {table.what} |")
        lines += [
            f"| | `{column.name}` | {column.kind} | {column.what} |" for column in table.columns
        ]
    return "\n".join(lines) + "\n"


def format_advice() -> str:
    lines = ["| code | next |", "|---|---|"]
    for code, what in ADVICE.items():
        sentences = [what] if isinstance(what, str) else what
        lines.append(f"| `{code}` | {'; or: '.join(sentences)} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("name", "spell"),
    [
        ("exit codes", format_codes),
        ("commands", format_commands),
        ("tables", format_tables),
        ("advice", format_advice),
    ],
)
def test_the_page_is_that_of_the_code(name: str, spell: Callable[[], str]) -> None:
    check_section("../cli.md", name, spell())


def test_the_examples_of_the_page_are_understood() -> None:
    text = (DOCS / "../cli.md").read_text(encoding="utf-8")
    statements = re.findall(r'^duramen sql "(.*?)"', text, re.MULTILINE)
    for statement in statements:
        database = Database(1)
        assert database.tables_of(statement)
        assert list(database.select(statement)[1]) == []
    (block,) = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    plan = make_plan(read_documents({"page": block.encode()}), {})
    assert [step.action for step in plan] == ["create", "create"] and len(statements) == 3
