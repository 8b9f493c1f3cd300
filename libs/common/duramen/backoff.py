"""How long to wait before the same thing is tried again: one value for every place that does so.

The pause doubles with each try, from the first to the longest, and stays there. A place that meets
others of its kind spreads its pauses with randomness, so that those who failed together come back
apart. Who waits keeps the count of its tries or its last pause; the value keeps nothing, so cores
have it as well.

Called by cores, services, the client and the operator. The figures that several of them share are
in `limits`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

_DOUBLINGS_MAX: Final = 40
"""A microsecond doubled so often is twelve days: more would only make long numbers."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double.

    Attributes:
        first_us: the first pause.
        limit_us: the longest one.
        spread: least and most by which a pause is multiplied when it is spread.
    """

    first_us: int
    limit_us: int
    spread: tuple[float, float] = (1.0, 1.0)

    def pause_us(self, index: int) -> int:
        """The pause behind a try; the first try has index 0."""
        return min(self.first_us << min(index, _DOUBLINGS_MAX), self.limit_us)

    def next_us(self, last_us: int) -> int:
        """The pause behind one of `last_us`; 0: there was none."""
        return min(max(2 * last_us, self.first_us), self.limit_us)

    def spread_us(self, pause_us: int, rng: random.Random) -> int:
        """A pause as one of many waits it; draws once."""
        return int(pause_us * rng.uniform(*self.spread))
