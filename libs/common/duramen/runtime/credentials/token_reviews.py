"""What Kubernetes' API server says of a service account's token, beyond what its signature says.

Asked on top of the signature, for a token that is good otherwise: whether the pod and the account
that it is bound to are still there. One asking for a token at a time, a few at once; what was
refused stays refused for a moment, so that one who is gone takes nobody's turn.

Called by `web_bearers`. Source: docs/protocol/credentials.md "TokenReview".
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Any, Final

import orjson

from duramen.runtime.credentials.encodings import EncodingError, read_object
from duramen.runtime.credentials.https_calls import CALL_S_MAX, CallFailedError, open_caller
from duramen.runtime.credentials.issuers import Issuer
from duramen.runtime.credentials.principals import CredentialRefusedError
from duramen.runtime.shared_tasks import take_failure

BELIEVED_S_MAX: Final = 60
REFUSED_S: Final = 10
REFUSED_COUNT_MAX: Final = 1_024
RUNNING_COUNT_MAX: Final = 16
WAITING_COUNT_MAX: Final = 256

_LOG: Final = logging.getLogger(__name__)


class TokenReviewer:
    """The reviews of one issuer's tokens."""

    def __init__(self, issuer: Issuer) -> None:
        assert issuer.review is not None, "an issuer without reviews has no reviewer"
        self._issuer = issuer
        self._review_by = issuer.review
        self._turns = asyncio.Semaphore(RUNNING_COUNT_MAX)
        self._asking: dict[bytes, asyncio.Task[None]] = {}
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        self._review_count = 0
        self._failure = ""

    async def confirm(self, text: str, digest: bytes, subject: str, now_s: float) -> None:
        """See that the API server still knows a token that is good otherwise.

        Args:
            digest: of the text, by which it is known again.

        Raises:
            CredentialRefusedError: it does not, or did not a moment ago, or cannot be asked.
        """
        refused_s = self._refused.get(digest)
        if refused_s is not None and 0 <= now_s - refused_s < REFUSED_S:
            raise CredentialRefusedError(f"{self._issuer.name}: was refused by the API server")
        if digest not in self._asking:
            if len(self._asking) >= RUNNING_COUNT_MAX + WAITING_COUNT_MAX:
                raise CredentialRefusedError(f"{self._issuer.name}: too many wait for a review")
            task = asyncio.create_task(self._ask(text, digest, subject, now_s))
            self._asking[digest] = task
            task.add_done_callback(take_failure)
            task.add_done_callback(lambda _: self._asking.pop(digest))
        # Who asks may leave before the answer comes; another call with this token wants it as well.
        await asyncio.shield(self._asking[digest])

    async def stop(self) -> None:
        """Ask no more."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def statistics(self) -> dict[str, int]:
        """Sizes and counters."""
        return {
            "reviews": self._review_count,
            "reviews_asking": len(self._asking),
            "reviews_refused": len(self._refused),
        }

    async def _ask(self, text: str, digest: bytes, subject: str, now_s: float) -> None:
        try:
            # The wait for a turn is in it, so that nobody waits for longer.
            async with asyncio.timeout(CALL_S_MAX), self._turns:
                self._review_count += 1
                answer = await self._call(text)
        except (CallFailedError, TimeoutError) as error:
            # It is the API server's failure, not the token's: the next call asks again.
            failure = str(error) or f"no answer within {CALL_S_MAX} s"
            self._note(failure)
            raise CredentialRefusedError(f"{self._issuer.name}: no review: {failure}") from None
        self._note("")
        try:
            judge_review(answer, self._issuer.audience, subject)
        except CredentialRefusedError:
            self._refused[digest] = now_s
            self._refused.move_to_end(digest)
            if len(self._refused) > REFUSED_COUNT_MAX:
                self._refused.popitem(last=False)
            raise
        self._refused.pop(digest, None)

    async def _call(self, text: str) -> bytes:
        spec = {"token": text, "audiences": [self._issuer.audience]}
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        source = self._review_by
        async with open_caller(source.ca_file, source.bearer_file) as caller:
            return await caller.call(source.url, orjson.dumps(asked))

    def _note(self, failure: str) -> None:
        if failure and failure != self._failure:
            _LOG.warning("reviews of issuer %s: %s", self._issuer.name, failure)
        self._failure = failure


def judge_review(content: bytes, audience: str, subject: str) -> None:
    """See that an answer says: this token is good, for this audience, and names this subject.

    Raises:
        CredentialRefusedError: it says something else.
    """
    try:
        status = read_object(content).get("status")
    except EncodingError as error:
        raise CredentialRefusedError(f"a review: {error}") from None
    said: dict[str, Any] = status if isinstance(status, dict) else {}
    user, audiences = said.get("user"), said.get("audiences")
    if said.get("authenticated") is not True or said.get("error"):
        raise CredentialRefusedError(f"the API server refuses it: {said.get('error')!r}")
    if not isinstance(audiences, list) or audience not in audiences:
        raise CredentialRefusedError(f"the API server took it for {audiences!r}")
    if not isinstance(user, dict) or user.get("username") != subject:
        raise CredentialRefusedError("the API server names another subject")
