"""Mutants of what heals a log while links stay cut: looks at the nodes, and logs that are given up.

Played in the runs of `tests.sim.standing`. Part of `tests.sim.mutants`.
Source: docs/protocol/ownership.md "A takeover that is stuck", "Cut off from bookies".
"""

from __future__ import annotations

from typing import Any, Final

from duramen.core.ownership import relief
from duramen.core.ownership.relief import Reliefs
from duramen.core.sequencer.epoch import open_epoch
from duramen.core.sequencer.own_changes import OwnChanges
from tests.sim.mutants.mutant import Mutant


def _never(*_: Any, **__: Any) -> None:
    return None


def _keep_all(*_: Any) -> list[Any]:
    return []


def _give_to_anybody(_log: Any, _candidates: Any, unreached: Any) -> bool:
    """Whoever says anything in the roster, where lists stand, could serve the log."""
    return isinstance(unreached, list)


MUTANTS: Final[dict[str, Mutant]] = {
    "recoverer-never-reads-again": Mutant(
        "ownership.md", "a recovery that bookies do not let go on asks them alone",
        ((OwnChanges, "look_later", _never),), is_standing=True,
    ),
    "deposed-owner-never-looks": Mutant(
        "ownership.md", "an owner whose bookies do not tell it of another asks them alone",
        ((open_epoch, "find_loss", _never),), is_standing=True,
    ),
    "cut-off-owner-keeps-its-log": Mutant(
        "ownership.md", "an owner without an ack set keeps a log that others could serve",
        ((Reliefs, "choose", _keep_all),), is_standing=True,
    ),
    "given-up-where-nobody-serves": Mutant(
        "ownership.md", "a log is given up, again and again, to those who cannot serve it either",
        ((relief, "can_serve", _give_to_anybody),), is_standing=True,
    ),
}  # fmt: skip
