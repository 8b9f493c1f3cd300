"""The texts of refusals: they name verb and target as asked, and nothing else.

Source: docs/protocol/rights.md "How a call is judged".
"""

from __future__ import annotations

from duramen.core.rights.verbs import Verb
from duramen.runtime.admission.refusals import refuse_unknown, refuse_verb


def test_a_refusal_names_verb_and_target() -> None:
    assert refuse_verb(Verb.APPEND, "shop", "orders").detail == "append to shop/orders: you may not"
    assert refuse_verb(Verb.CREATE, "shop").detail == "create on shop: you may not"
    assert refuse_verb(Verb.OPERATE).detail == "operate on the cluster: you may not"


def test_nobody_learns_why_it_is_not_known() -> None:
    refusal = refuse_unknown()
    assert (refusal.code, refusal.detail) == (
        "unauthenticated", "who are you? Show a credential: Authorization or Duramen-Identity",
    )  # fmt: skip
