"""In which region a log's writers are: the region that most of its appends come from.

Write proxies tell their region with each append, where sequencers are in several. A log whose
configuration asks for it (`owner_region: writers`) has its owner there. The region of MAIN_SHARE of
the appends counts, and nothing below RATE_MIN: a log that two regions write to alike stays where it
is, and so does one that hardly anybody writes to.

Called by the sequencer's `ownership.hand_over`; `balancer` acts on it.
Source: docs/protocol/ownership.md "Owners in the region of the writers".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MAIN_SHARE: Final = 0.6
RATE_MIN: Final = 1.0
"""Appends per second of the whole log."""


def find_writers_region(rates: Mapping[str, float], appends_per_s: float) -> str | None:
    """The region of most appends; None: there is none, or it is not known.

    Args:
        rates: region → appends per second that came from there.
        appends_per_s: of the log, also those that named no region.
    """
    if appends_per_s < RATE_MIN or not rates:
        return None
    region = max(rates, key=lambda name: (rates[name], name))
    return region if rates[region] >= MAIN_SHARE * appends_per_s else None
