"""The list of licences fails on what is unknown, unclear or not allowed, and on nothing else.

Packages with odd metadata are made up here; those of the lock are read as they are installed, so
a new version whose licence has changed fails here before it is shipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from email.message import Message
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import cast

import pytest

from tests.distribution import licences
from tests.distribution.licences import ALLOWED, READ, Licence, find_faults, judge, read_licence
from tests.distribution.lock import Pin, pins_of, read_pins, require_installed, shipped_extras
from tests.distribution.make import LicenceError, make_all, needed_by

PIN = Pin("thing", "1.0", None, "thing==1.0\n")
OSI = "License :: OSI Approved :: "


class Package:
    """An installed package with this metadata and these files."""

    def __init__(
        self, fields: Sequence[tuple[str, str]], folder: Path, files: Mapping[str, str]
    ) -> None:
        self.metadata = Message()
        for name, value in fields:
            self.metadata[name] = value
        self._folder = folder
        for name, text in files.items():
            (folder / name).write_text(text)
        self.files = [PurePosixPath(name) for name in files]

    def locate_file(self, path: PurePosixPath) -> Path:
        return self._folder / path


def read(
    *fields: tuple[str, str], pin: Pin = PIN, folder: Path | None = None, **files: str
) -> Licence | str:
    package = Package(fields, folder or Path(), files)
    return read_licence(pin, cast("metadata.Distribution", package))


def test_every_locked_package_has_a_licence_that_is_allowed() -> None:
    known, faults = judge(read_pins())
    assert not faults, "\n".join(["", *faults])
    assert len(known) == sum(pin.is_for_here for pin in read_pins())


@pytest.mark.parametrize(
    ("fields", "expression"),
    [
        ([("License-Expression", "MIT OR Apache-2.0")], "MIT OR Apache-2.0"),
        ([("License-Expression", "MIT"), ("License", "GPL")], "MIT"),
        ([("License", "BSD-3-Clause")], "BSD-3-Clause"),
        ([("License", "Apache 2.0")], "Apache-2.0"),
        ([("License", "Copyright (c) …"), ("Classifier", f"{OSI}MIT License")], "MIT"),
    ],
)
def test_a_licence_is_read(fields: list[tuple[str, str]], expression: str) -> None:
    found = read(*fields)
    assert isinstance(found, Licence)
    assert found.expression == expression
    assert find_faults(found) == []


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [("License", "Proprietary, ask us")],
        [("Classifier", f"{OSI}BSD License")],
        [("Classifier", f"{OSI}MIT License"), ("Classifier", f"{OSI}Apache Software License")],
        [("Classifier", f"{OSI}MIT License"), ("Classifier", f"{OSI}No Such Licence")],
        [("Classifier", "License :: OSI Approved")],
        [("Classifier", "License :: Other/Proprietary License")],
    ],
)
def test_what_cannot_be_told_is_a_fault(fields: list[tuple[str, str]]) -> None:
    found = read(*fields)
    assert isinstance(found, str)
    assert found.startswith("thing 1.0: ")


@pytest.mark.parametrize(
    "expression",
    [
        "GPL-3.0-only",
        "GPL-2.0-only",
        "MIT AND GPL-3.0-only",
        "LicenseRef-Proprietary",
        "No-Such-Licence",
        "MIT OR",
        "AGPL-3.0-only OR SSPL-1.0",
    ],
)
def test_a_licence_that_is_not_allowed_is_a_fault(expression: str) -> None:
    [fault] = find_faults(Licence(PIN, expression, "License-Expression"))
    assert fault.startswith(f"thing 1.0: {expression}")


@pytest.mark.parametrize(
    "expression",
    [*ALLOWED, "GPL-3.0-only OR MIT", "MPL-2.0 AND (Apache-2.0 OR GPL-3.0-only)"],
)
def test_of_alternatives_one_is_enough(expression: str) -> None:
    assert find_faults(Licence(PIN, expression, "License-Expression")) == []


def test_what_a_person_read_must_still_stand_there(tmp_path: Path) -> None:
    pin = Pin("py4j", "9", None, "py4j==9\n")
    words = " … ".join(READ["py4j"].words)
    found = read(pin=pin, folder=tmp_path, **{"LICENSE.txt": words})
    assert isinstance(found, Licence)
    changed = read(pin=pin, folder=tmp_path, **{"LICENSE.txt": "All rights reserved."})
    assert isinstance(changed, str)
    assert "read it again" in changed
    assert isinstance(read(pin=pin, folder=tmp_path), str)


def test_what_was_read_is_needed() -> None:
    """An entry whose package has gone, or says it itself by now, is taken out."""
    locked = {pin.name: pin for pin in read_pins()}
    for name in READ:
        assert name in locked
        unread = Pin("other", locked[name].version, None, "")
        found = read_licence(unread, require_installed(locked[name]))
        is_clear = isinstance(found, Licence) and found.expression == READ[name].expression
        assert not is_clear, f"{name} tells its licence by itself"


def test_nothing_is_made_with_a_licence_that_is_not_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = {name: why for name, why in ALLOWED.items() if name != "MPL-2.0"}
    monkeypatch.setattr(licences, "ALLOWED", allowed)
    with pytest.raises(LicenceError, match=r"certifi .*: MPL-2.0: not among the licences"):
        make_all(tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


def test_the_list_says_who_needs_what() -> None:
    users = needed_by()
    assert users["kazoo"] == ["every process"]
    assert users["pytest"] == ["dev"]
    assert users["granian"] == ["bookie", "sequencer", "writeproxy", "readproxy", "run"]
    here = {pin.name for pin in read_pins() if pin.is_for_here}
    assert set(users) == here, "every locked package is needed by something"
    assert {pin.name for pin in pins_of(shipped_extras())} < here
