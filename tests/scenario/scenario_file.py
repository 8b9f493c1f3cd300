"""A scenario's file: comments, and steps of a command, `----`, the output and an empty line.

`run_scenario` plays a whole file on a fresh stage and returns it with the output that came, so that
"does it hold" is a comparison of texts and "rewrite it" is a write. What the commands mean is
`interpreter`'s.

Called by `test_scenarios.py`. Source: docs/scenarios.md, after etcd-io/raft's datadriven tests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.combinations import OTHERS, Combination
from tests.scenario.interpreter import Interpreter, ScenarioError

_ONLY = re.compile(r"^# Only ([a-z_/]+): ", re.MULTILINE)


@dataclass(slots=True)
class Step:
    """One command; comments above it travel along."""

    number: int
    comments: list[str]
    command: str
    output: list[str] = field(default_factory=list)


def run_scenario(text: str) -> str:
    """The whole scenario again, with the output that the cores gave."""
    steps, trailer = parse_steps(text)
    interpreter = Interpreter()
    blocks = []
    for step in steps:
        try:
            output = interpreter.run(step.command)
        except Exception as error:
            error.add_note(f"at line {step.number}: {step.command}")
            raise
        blocks.append("\n".join([*step.comments, step.command, "----", *output]) + "\n")
    if trailer:
        blocks.append("\n".join(trailer) + "\n")
    return "\n".join(blocks)


def report_fates(text: str, combination: Combination) -> list[str]:
    """What clients get to know in each step, with a log of this kind."""
    steps, _ = parse_steps(text)
    interpreter = Interpreter(combination)
    told = []
    for step in steps:
        try:
            told.append(f"{step.command}: {interpreter.run(step.command, fates_only=True)}")
        except Exception as error:
            error.add_note(f"at line {step.number}: {step.command}, with {combination}")
            raise
    return told


def list_combinations(text: str) -> list[Combination]:
    """The kinds of logs, beside the first one, that the story does not leave out.

    `# Only striped: why` leaves out those that are not, and so on; `striped/ordered` leaves none.
    """
    only = _ONLY.findall(text)
    return [one for one in OTHERS if all(word in one for word in only)]


def parse_steps(text: str) -> tuple[list[Step], list[str]]:
    """Steps and the comments after the last one."""
    steps: list[Step] = []
    comments: list[str] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if not line.strip() or line.startswith("#"):
            comments.append(line.rstrip())
            continue
        step = Step(at, _strip(comments), line.strip())
        if at >= len(lines) or lines[at].strip() != "----":
            raise ScenarioError(f"line {at}: `----` is missing below {line!r}")
        at += 1
        while at < len(lines) and lines[at].strip():
            step.output.append(lines[at])
            at += 1
        steps.append(step)
        comments = []
    return steps, [line for line in _strip(comments) if line]


def _strip(comments: Sequence[str]) -> list[str]:
    """Comments without empty lines above; one that was below, between them and a command, stays."""
    text = "\n".join(comments)
    stripped = text.strip("\n").split("\n") if any(comments) else []
    return [*stripped, ""] if stripped and text.endswith("\n") else stripped
