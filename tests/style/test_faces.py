"""Every public method of the SDK tells its arguments, results, errors and an example.

The rule is in `faces.py`; each of its parts is proved to fail. That examples run is
tests/component/test_sdk_examples.py's matter.
"""

import pytest

import duramen.client
import duramen.client.core
from duramen.errors import ERRORS
from tests.style.faces import Face, find_face_faults, read_sections
from tests.style.tidiness import Module
from tests.style.tree import ROOT, assert_tidy

SDK = "libs/common/duramen/client"
MADE = Face(is_made_by_users=True)
WITHOUT = Face(has_examples=False)
OWNED = Face(
    has_examples=False,
    inner=frozenset({
        "on_bookies_changed", "on_broken", "on_fenced", "on_idle", "on_session", "on_lists_changed",
        "on_identity_ended",
        "resubmit",
    }),
)  # fmt: skip
TICKET = Face(has_examples=False, inner=frozenset({"settle"}))
FACES = {
    f"{SDK}/sdk/client.py": {"Client": MADE},
    f"{SDK}/sdk/log.py": {"Namespace": Face(), "Log": Face()},
    f"{SDK}/sdk/producer.py": {"Producer": Face(), "Ticket": Face(), "BulkTicket": Face()},
    f"{SDK}/sdk/read_batch.py": {"ReadBatch": Face()},
    f"{SDK}/blocking/client.py": {"SyncClient": MADE, "SyncNamespace": Face(), "SyncLog": Face()},
    f"{SDK}/blocking/producer.py": {
        "SyncProducer": Face(),
        "SyncTicket": Face(),
        "SyncBulkTicket": Face(),
    },
    f"{SDK}/partitioned/log.py": {"PartitionedLog": Face()},
    f"{SDK}/partitioned/producer.py": {"PartitionedProducer": Face()},
    f"{SDK}/partitioned/blocking.py": {
        "SyncPartitionedLog": Face(),
        "SyncPartitionedProducer": Face(),
    },
    # docs/sdk.md "Without proxies: the core library" has the example, and a test runs it.
    f"{SDK}/core/client.py": {"CoreClient": WITHOUT},
    f"{SDK}/core/read_log.py": {"ReadLog": WITHOUT},
    f"{SDK}/core/owned_log.py": {"OwnedLog": OWNED, "AppendTicket": TICKET},
}
VALUES = {
    "Appended", "DuramenError", "LogSettings", "Lost", "Mark", "Moved", "NotOwner",
    "PartitionBatch", "ReadRecord", "Receipt", "Record", "Repeat", "RetryPolicy", "Uncertain",
    "Unreachable",
}  # fmt: skip
"""Public classes without a method that a user calls."""

GOOD = '''
class Log:
    def cut(self, to: int, *, most: int = 1) -> int:
        """Cut it.

        Args:
            to: a number.
            most: another, from 1; 1.

        Returns:
            What is left.

        Raises:
            DuramenError: `log_ended`: a retry is refused again.

        Example:
            log.cut(3)
        """
'''


def test_every_public_method_of_the_sdk_tells_all_of_it() -> None:
    for path, faces in FACES.items():
        module = Module(path, (ROOT / path).read_text(encoding="utf-8"))
        assert_tidy(find_face_faults(module, faces, ERRORS))


def test_no_public_class_of_the_sdk_is_left_out() -> None:
    held = {name for faces in FACES.values() for name in faces}
    public = {*duramen.client.__all__, *duramen.client.core.__all__}
    assert public == held | VALUES


def test_a_docstring_that_tells_all_of_it_is_let_through() -> None:
    assert not find_face_faults(Module("a.py", GOOD), {"Log": Face()}, ERRORS)
    assert read_sections("Cut.\n\nArgs:\n    to: a\n        number.\n\nRaises:\n    Nothing.") == {
        "Args": "to: a\n    number.",
        "Raises": "Nothing.",
    }


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("Cut it.", "Cut it", "first line"),
        ("            to: a number.\n", "", "its argument to"),
        ("Args:", "Given:", "its argument most"),
        ("most: another", "least: another", "an argument least that it has not"),
        ("Returns:", "Gives:", "what it gives"),
        ("Raises:", "Fails:", "what it raises"),
        ("log_ended", "log_over", "error log_over"),
        ("Example:", "Such as:", "an example of 0 lines"),
        ("log.cut(3)", "log.cut(3)" + "\n            log.cut(4)" * 6, "an example of 7 lines"),
        ("class Log", "class Lag", "no class Log"),
        ("cut(self", "__getitem__(self, of: int", "its argument of"),
    ],
)
def test_a_docstring_that_lacks_something_is_found(old: str, new: str, fault: str) -> None:
    bad = Module("a.py", GOOD.replace(old, new, 1))
    found = find_face_faults(bad, {"Log": Face()}, ERRORS)
    assert any(fault in told for told in found), found


def test_a_constructor_counts_where_users_call_it_and_an_example_where_one_is_asked_for() -> None:
    bare = Module("a.py", GOOD.replace("cut(", "__init__(").replace("Example", "Such as"))
    assert not find_face_faults(bare, {"Log": Face()}, ERRORS)
    assert find_face_faults(bare, {"Log": MADE}, ERRORS)
    plain = Module("a.py", GOOD.replace("Example", "Such as"))
    assert not find_face_faults(plain, {"Log": WITHOUT}, ERRORS)
