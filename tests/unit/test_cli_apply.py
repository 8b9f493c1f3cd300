"""`duramen apply`: documents, plan, and the command against a server that plays a write proxy.

What is checked is what a user sees: every fault with its file, document and field before anything
is written, the plan, and that only differences are sent.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duramen.cli.declare.documents import FILE_BYTES_MAX, DocumentsError, Wanted, read_documents
from duramen.cli.declare.plan import Change, Present, make_plan
from duramen.cli.main import main
from duramen.config import LogConfig, NamespaceConfig
from duramen.errors import DuramenError
from tests.unit.fake_proxy import FakeProxy, running_proxy

SHOP = {"kind": "Namespace", "name": "shop"}
ORDERS = """
kind: Log
name: shop/orders
config:
  retention: {age: 7d}
"""
LOG = "/v1/namespaces/shop/logs/orders"
DEFAULTS = LogConfig().to_json()


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProxy]:
    with running_proxy() as server:
        monkeypatch.setenv("DURAMEN_URL", server.url)
        yield server


def faults_of(text: str) -> list[str]:
    with pytest.raises(DocumentsError) as caught:
        read_documents({"a.yaml": text.encode()})
    return caught.value.faults


def test_documents_are_yaml_of_many_or_json_of_one_or_a_list() -> None:
    found = read_documents(
        {
            "a.yaml": f"{json.dumps(SHOP)}\n---\n---\n{ORDERS}".encode(),
            "b.json": b'[\n\t{"kind": "Log", "name": "shop/a"},\n\t{"kind": "Log", "name": "x/b"}]',
        }
    )
    assert [str(one) for one in found] == [
        "Namespace shop", "Log shop/orders", "Log shop/a", "Log x/b",
    ]  # fmt: skip
    assert found[1].config == {"retention": {"age": "7d"}}
    assert found[1].where == "a.yaml: document 2 (line 5)"
    assert found[3].where == "b.json: document 2" and found[3].namespace == "x"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kind: Lgo\nname: a/b", "a.yaml: document 1 (line 1): kind: Namespace or Log is expected"),
        ("kind: Log\nname: orders", "document 1 (line 1): name: 'orders': write NAMESPACE/LOG"),
        ("kind: Log\nname: [a]", "name: a text is expected"),
        ("kind: Log\nname: a/b\nspec: {}", "spec: not a known field, use kind, name, config"),
        ("kind: Log\nname: a/b\nconfig: 7", "config: fields are expected, found 7"),
        ("kind: Log\nname: a/b\n---\nkind: Log\nname: a/b", "Log a/b stands in a.yaml: document 1"),
        ("kind: Log\nname: a/b\nname: a/c", "a.yaml: line 3: name stands here twice"),
        ("kind: Log\nconfig: {on: 1}", "a.yaml: line 2: a key is no text"),
        ("kind: [Log", "a.yaml: line 1: "),
        ("kind: &a !!python/object:os.system {}", "a.yaml: line 1: could not determine"),
        ("just text", "expected kind, name and config, found 'just text'"),
        ("# nothing", "a.yaml: there is no document in it"),
        ("[" * 1_000, "a.yaml: nested too deeply"),
        ("\x00", "a.yaml: "),
    ],
)
def test_a_fault_names_file_document_and_field(text: str, fault: str) -> None:
    assert any(fault in found for found in faults_of(text)), faults_of(text)


def test_a_mapping_that_holds_itself_ends() -> None:
    (fault,) = faults_of("&a\nkind: Log\nname: x\nconfig: *a")
    assert "name: 'x'" in fault


def test_a_file_that_is_too_large_is_refused() -> None:
    (fault,) = faults_of(" " * (FILE_BYTES_MAX + 1))
    assert "split it" in fault


def want(name: str, config: dict[str, object] | None = None) -> Wanted:
    return Wanted("Log" if "/" in name else "Namespace", name, config or {}, "f")


def test_a_plan_has_namespaces_first_and_only_differences() -> None:
    present = {
        ("Namespace", "old"): Present(NamespaceConfig().to_json()),
        ("Log", "old/same"): Present(DEFAULTS, 3),
        ("Log", "old/other"): Present(DEFAULTS, 4),
    }
    wanted = [
        want("new/log", {"roll": {"interval": "60m"}}),
        want("old/same", {"roll": {"interval": "120m"}}),
        want("old/other", {"retention": {"age": None}, "early_append": True}),
        want("old", {"auto_create": True}),
        want("new", {"auto_create": True}),
    ]
    steps = make_plan(wanted, present)
    assert [(step.wanted.name, step.action) for step in steps] == [
        ("old", "change"), ("new", "create"), ("new/log", "create"), ("old/same", "same"),
        ("old/other", "change"),
    ]  # fmt: skip
    assert steps[0].changes == (Change("auto_create", False, True),)
    assert steps[2].changes == (Change("roll.interval", None, "1h"),)
    assert set(steps[4].changes) == {
        Change("retention.age", "3d", None), Change("early_append", False, True)
    }  # fmt: skip
    assert steps[4].patch() == {"retention": {"age": None}, "early_append": True}
    assert steps[4].version == 4


def test_other_copysets_replace_replication_and_are_one_patch() -> None:
    """YAML reads `sticky: on` as true; what the new form has not is not compared."""
    stored = LogConfig.model_validate({"replication": {"ensemble_size": 5}}).to_json()
    config = {"copysets": "flexible", "replication": {"node": 2}, "sticky": True}
    present = {("Namespace", "a"): Present({}), ("Log", "a/b"): Present(stored, 1)}
    (step,) = make_plan([want("a/b", config)], present)
    assert step.patch() == {"copysets": "flexible", "replication": {"node": 2}, "sticky": "on"}
    flexible = LogConfig.model_validate(config).to_json()
    present["Log", "a/b"] = Present(flexible, 2)
    (step,) = make_plan([want("a/b", config)], present)
    assert step.action == "same"
    with pytest.raises(DocumentsError, match="striped logs have ensemble_size"):
        make_plan([want("a/b", {"replication": {"ensemble_size": 3}})], present)


def test_fields_that_a_document_does_not_name_are_left() -> None:
    kept = LogConfig.model_validate({"retention": {"age": "30d"}}).to_json()
    present = {("Namespace", "a"): Present({}), ("Log", "a/b"): Present(kept, 1)}
    (step,) = make_plan([want("a/b", {"retention": {"bytes": "1GiB"}})], present)
    assert step.changes == (Change("retention.bytes", None, "1GiB"),)


def test_what_is_there_counts_for_what_is_valid() -> None:
    wide = LogConfig.model_validate({"replication": {"ensemble_size": 5}}).to_json()
    present = {("Namespace", "a"): Present({}), ("Log", "a/b"): Present(wide, 1)}
    (step,) = make_plan([want("a/b", {"replication": {"write_quorum": 5}})], present)
    assert step.patch() == {"replication": {"write_quorum": 5}}


def test_a_plan_refuses_all_that_cannot_become_true() -> None:
    present = {
        ("Namespace", "a"): Present(NamespaceConfig().to_json()),
        ("Log", "a/three"): Present(DEFAULTS, 1),
    }
    wanted = [
        want("a", {"auto_created": True}),
        want("b/c"),
        want("a/new", {"ratention": {}, "window": {"entries": 0}}),
        want("a/three", {"replication": {"write_quorum": 4}}),
        want("a/part", {"retention": 7}),
    ]
    with pytest.raises(DocumentsError) as caught:
        make_plan(wanted, present)
    namespace, missing, unknown, small, quorum, part = caught.value.faults
    assert namespace == "f: Namespace a: config.auto_created: not a known field"
    assert "there is no namespace b: declare it as well" in missing
    assert unknown == "f: Log a/new: config.ratention: not a known field"
    assert small.startswith("f: Log a/new: config.window.entries: ")
    assert quorum.startswith("f: Log a/three: config.replication: ensemble_size 3")
    assert part.startswith("f: Log a/part: config.retention: ")


def test_applying_sends_differences_and_twice_nothing(
    proxy: FakeProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"{json.dumps(SHOP)}\n---{ORDERS}")
    proxy.answers["/v1/namespaces/shop"] = {"namespace": "shop", "config": {"auto_create": False}}
    proxy.answers[LOG] = {"config": DEFAULTS, "config_version": 5}
    proxy.answers[f"{LOG}?config_version=5"] = {"changed": True}
    assert main(["apply", "-f", str(file), "--dry-run"]) == 0
    assert [path for path, body in proxy.asked if body is not None] == []
    assert "change  Log shop/orders\n          retention.age: 3d → 7d\n" in capsys.readouterr().out
    assert main(["apply", "-f", str(file), "--json"]) == 0
    changed = [asked for asked in proxy.asked if asked[1] is not None]
    assert changed == [(f"{LOG}?config_version=5", {"retention": {"age": "7d"}})]
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [(step["action"], step["done"]) for step in steps] == [("same", True), ("change", True)]
    proxy.answers[LOG] = {"config": {**DEFAULTS, "retention": {"age": "7d"}}, "config_version": 6}
    proxy.asked.clear()
    assert main(["apply", "-f", str(file)]) == 0
    assert [body for _, body in proxy.asked if body is not None] == []


def test_a_namespace_is_changed(proxy: FakeProxy, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("kind: Namespace\nname: shop\nconfig: {auto_create: true}")
    proxy.answers["/v1/namespaces/shop"] = {"config": {"auto_create": False}, "changed": True}
    assert main(["apply", "-f", str(file)]) == 0
    assert proxy.asked[-1] == ("/v1/namespaces/shop", {"auto_create": True})
    proxy.answers["/v1/namespaces/shop"] = {"config": {"auto_create": True}}
    proxy.asked.clear()
    assert main(["apply", "-f", str(file)]) == 0
    assert [body for _, body in proxy.asked if body is not None] == []


@pytest.mark.parametrize(
    ("words", "answer", "asked", "line"),
    [
        (
            ["reconfigure", "shop", "--config", '{"auto_create": true}'],
            {"config": {"auto_create": True}, "changed": True}, {"auto_create": True}, "changed",
        ),
        (
            ["reconfigure", "shop", "--config", "{}"],
            {"config": {"auto_create": True}, "changed": False}, {}, "the same already",
        ),
        (["delete", "shop"], {"namespace": "shop", "changed": True}, "deleted", "deleted"),
        (["delete", "shop"], {"namespace": "shop", "changed": False}, "deleted", "was not there"),
    ],
)  # fmt: skip
def test_namespaces_are_changed_and_deleted_by_hand(  # noqa: PLR0917 - one command and its answer
    proxy: FakeProxy,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    answer: dict[str, object],
    asked: object,
    line: str,
) -> None:
    proxy.answers["/v1/namespaces/shop"] = answer
    assert main(["namespace", *words]) == 0
    assert proxy.asked == [("/v1/namespaces/shop", asked)]
    assert capsys.readouterr().out == f"shop: {line}\n"
    assert main(["namespace", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer
    proxy.answers["/v1/namespaces/shop"] = DuramenError("namespace_not_empty", "it has logs")
    assert main(["namespace", *words]) == 1
    assert "next: see duramen log list NAMESPACE, and delete them" in capsys.readouterr().err


def test_new_things_are_created_from_standard_input(
    proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"{ORDERS}---\n{json.dumps(SHOP)}\n---\nkind: Log\nname: shop/gone"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    there = {"namespace": "shop", "config": {"auto_create": False}}
    proxy.answers["/v1/namespaces/shop"] = there
    proxy.answers[LOG] = DuramenError("log_not_found", "there is no log")
    proxy.answers["/v1/namespaces/shop/logs/gone"] = DuramenError("log_deleted", "deleted")
    assert main(["apply", "-f", "-"]) == 1
    puts = [asked for asked in proxy.asked if asked[1] is not None]
    assert puts == [(LOG, {"retention": {"age": "7d"}})]  # and there the server refused


def test_nothing_is_written_when_a_document_is_wrong(
    proxy: FakeProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        f"{json.dumps(SHOP)}\n---{ORDERS}---\nkind: Log\nname: shop/x\nconfig: {{x: 1}}"
    )
    proxy.answers["/v1/namespaces/shop"] = DuramenError("namespace_not_found", "no")
    assert main(["apply", "-f", str(file)]) == 2
    said = capsys.readouterr().err
    assert f"{file}: document 3 (line 8): Log shop/x: config.x: not a known field" in said
    assert "nothing was written" in said
    assert [body for _, body in proxy.asked if body is not None] == []


def test_a_refusal_tells_what_was_done(
    proxy: FakeProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(ORDERS)
    proxy.answers["/v1/namespaces/shop"] = {"config": {"auto_create": False}}
    proxy.answers[LOG] = {"config": DEFAULTS, "config_version": 5}
    proxy.answers[f"{LOG}?config_version=5"] = DuramenError("config_conflict", "changed meanwhile")
    assert main(["apply", "-f", str(file)]) == 1
    captured = capsys.readouterr()
    assert "change  Log shop/orders  (not done)" in captured.out
    assert "config_conflict" in captured.err and "next: somebody else changed it" in captured.err
    assert main(["apply", "-f", str(tmp_path / "none.yaml")]) == 1
