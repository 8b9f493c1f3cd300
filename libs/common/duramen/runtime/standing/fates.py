"""What becomes of a request on a standing stream that is not answered.

Each says whether it may have been done; `http_client` makes of it what a call would say.
Source: docs/protocol/standing-streams.md "Rules" 3.
"""

from __future__ import annotations


class NeverBegunError(Exception):
    """Nothing of a request has left, or its server says that it was not begun."""


class StreamLostError(Exception):
    """The stream ended without an answer: the request may have been processed."""


class AdvisedRefusalError(Exception):
    """The request was not begun, and the server says when to ask again."""

    def __init__(self, sentence: str, advice_ms: int) -> None:
        super().__init__(sentence)
        self.advice_ms = advice_ms
