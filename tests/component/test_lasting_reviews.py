"""Calls that last while an issuer is slow to say whether their credential counts still.

Source: docs/protocol/rights.md "How a call is judged".
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from pathlib import Path
from typing import Any

import pytest

from duramen.core.rights.grants import parse_principal
from duramen.errors import DuramenError
from duramen.runtime.admission import lasting_calls
from duramen.runtime.admission.admission import ClientAdmission
from duramen.runtime.admission.call_rows import find_row
from duramen.runtime.admission.callers import AdmittedCall, ShownCredentials
from duramen.runtime.admission.counted_calls import CountedCall
from duramen.runtime.admission.lasting_calls import Judgement, LastingCalls
from duramen.runtime.credentials.principals import Bearer, CredentialRefusedError
from duramen.runtime.turning.tally import RefusalTally
from tests.component.admission_world import as_user, bear
from tests.component.door_world import Port, World, list_known, play
from tests.unit.web_token_forge import NOW_S, forge_account
from tests.waiting import wait_for

WITHIN_S = 5.0
PATH = "/v1/namespaces/shop/logs/orders/records"
CART = "serviceaccount:k8s/shop/cart"
UNKNOWN = DuramenError("unauthenticated", "who are you?")


async def admit(admission: ClientAdmission, shown: dict[str, str]) -> AdmittedCall:
    """One that reads the log for as long as it may."""
    credentials = ShownCredentials(
        tuple(v for n, v in shown.items() if n == "authorization"),
        tuple(v for n, v in shown.items() if n == "duramen-identity"),
    )
    bearer = await admission.identify(credentials, dt.datetime.now(dt.UTC))
    call = AdmittedCall(
        bearer, credentials, find_row("GET", PATH), time.time(), admission.find_rights
    )
    admission.lasting.add(call)
    return call


async def see(port: Port, shown: dict[str, str], status: int) -> None:
    async def has_status() -> bool:
        return (await port.call("GET", PATH, shown)).status == status

    await wait_for(has_status)


def forget(admission: ClientAdmission, calls: list[AdmittedCall]) -> None:
    """The minute of their reviews is over."""
    rows = admission._web_bearers._rows
    for digest in [one for one, row in rows.items() if str(row.bearer.principal) == CART]:
        del rows[digest]
    for call in calls:
        call.bearer = call.bearer._replace(review_s=int(time.time()) - 1)


def test_a_review_that_hangs_keeps_nobody_who_was_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        port, admission = world.ports[0], world.admissions[0]
        own, mine = f"{CART} reader shop", "reader reader shop"
        reader = as_user("reader")
        await world.callers.give(own, mine)
        text, token_id = await world.callers.make_token("read shop")
        await see(port, bear(text), 200)
        await see(port, reader, 200)
        shown = [bear(forge_account({"iat": NOW_S - number})) for number in range(6)]
        hanging = [await admit(admission, one) for one in shown]
        user = await admit(admission, reader)
        token = await admit(admission, bear(text))
        forget(admission, hanging)

        answered = asyncio.Event()

        async def hang(*_asked: Any) -> None:
            await answered.wait()
            raise CredentialRefusedError("the pod is gone")

        monkeypatch.setattr(admission._web_bearers, "_verify", hang)
        await world.callers.revoke(token_id)
        await world.callers.give(own)
        await wait_for(lambda: bool(user.refusal and token.refusal), WITHIN_S)
        assert user.refusal is not None and user.refusal.code == "forbidden"
        assert token.refusal is not None and token.refusal.code == "unauthenticated"
        assert not any(call.refusal for call in hanging), "nobody has said anything of them"
        assert admission.lasting.statistics()["reviewing"] == 6
        await world.callers.give()
        await wait_for(lambda: all(call.refusal for call in hanging), WITHIN_S)
        assert {call.refusal.code for call in hanging if call.refusal} == {"forbidden"}
        await world.callers.give(mine)
        await see(port, reader, 200)
        late = await admit(admission, reader)
        late.bearer = late.bearer._replace(ends_s=int(time.time()) - 1)
        admission._web_bearers._rows.clear()
        await wait_for(lambda: late.refusal is not None, WITHIN_S)
        assert late.refusal is not None and late.refusal.code == "unauthenticated"
        answered.set()

    play(tmp_path, scenario)


def test_who_is_known_goes_on_without_anybody_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        await world.callers.give(f"{CART} reader shop", "service:client/till reader shop")
        port, admission = world.ports[0], world.admissions[0]
        known = await list_known(world, port)
        await see(port, known[CART][0], 200)
        calls = [await admit(admission, known[name][0]) for name in (CART, "service:client/till")]
        for call in calls:
            call.judged_s -= lasting_calls.AGAIN_S + 1

        async def fail(*_asked: Any) -> None:
            raise AssertionError("somebody was asked")

        monkeypatch.setattr(admission._web_bearers, "_verify", fail)
        await wait_for(lambda: all(time.time() - one.judged_s < WITHIN_S for one in calls))
        assert not any(call.refusal for call in calls)
        assert admission.lasting.statistics()["ended"] == 0

    play(tmp_path, scenario)


def make_call() -> AdmittedCall:
    """One whose credential is to be reviewed."""
    now_s = time.time()
    bearer = Bearer(parse_principal(CART), NOW_S + 9_999, review_s=int(now_s) - 1)
    rights: Any = None
    return AdmittedCall(bearer, ShownCredentials((), ()), None, now_s, rights)


class Issuer:
    """Says of each call what it was told to, once it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.asked: list[AdmittedCall] = []
        self.refused: set[AdmittedCall] = set()
        self.faults: set[AdmittedCall] = set()

    async def review(self, call: AdmittedCall) -> DuramenError | None:
        self.asked.append(call)
        await self.may_answer.wait()
        if call in self.faults:
            raise RuntimeError("on purpose")
        call.bearer = call.bearer._replace(review_s=int(time.time()) + 60)
        return UNKNOWN if call in self.refused else None


def open_calls(issuer: Issuer, count: int) -> tuple[LastingCalls, list[AdmittedCall]]:
    calls = LastingCalls(lambda _: Judgement(None, is_known=False), issuer.review, lambda: 0)
    made = [make_call() for _ in range(count)]
    for call in made:
        calls.add(call)
    return calls, made


def test_reviews_are_bounded_and_each_has_its_own_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(lasting_calls, "REVIEW_COUNT_MAX", 3)
        issuer = Issuer()
        calls, made = open_calls(issuer, 8)
        await calls.look()
        await calls.look()
        await wait_for(lambda: len(issuer.asked) == 3)
        told = calls.statistics()
        assert (told["reviewing"], told["waiting_for_review"]) == (3, 5)
        gone = next(call for call in made if call not in issuer.asked)
        calls.discard(gone)
        calls.discard(issuer.asked[0])
        issuer.faults.add(issuer.asked[1])
        issuer.refused.add(issuer.asked[2])
        issuer.may_answer.set()
        await wait_for(lambda: not calls.statistics()["reviewing"])
        assert calls.statistics()["waiting_for_review"] == 0
        assert sorted(map(id, issuer.asked)) == sorted(id(one) for one in made if one is not gone)
        assert [call for call in made if call.refusal] == [issuer.asked[2]]
        await calls.look()
        await wait_for(lambda: len(issuer.asked) > 7)
        assert issuer.asked[7:] == [issuer.asked[1]], "of that one nothing was said"
        await calls.stop()

    asyncio.run(scenario())


def test_who_would_have_been_refused_is_counted_once_and_asked_about_no_more() -> None:
    async def scenario() -> None:
        issuer, tally = Issuer(), RefusalTally()
        issuer.may_answer.set()
        calls, [like] = open_calls(issuer, 1)
        calls.discard(like)
        found = find_row("GET", PATH)
        call = CountedCall(like.bearer, like.shown, found, like.judged_s, like._find_rights)
        call.count_by(tally)
        call.bearer = call.bearer._replace(ends_s=int(time.time()) - 1)  # due at every look
        calls.add(call)
        issuer.refused.add(call)
        for _ in range(3):
            await calls.look()
            await wait_for(lambda: not calls.statistics()["reviewing"])
        assert issuer.asked == [call]
        call.check()
        assert tally.statistics()["found"] == 1
        assert calls.statistics()["ended"] == 1
        await calls.stop()

    asyncio.run(scenario())


def test_who_gets_no_review_in_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(lasting_calls, "REVIEW_COUNT_MAX", 1)
        monkeypatch.setattr(lasting_calls, "REVIEW_S_MAX", 0.01)
        issuer = Issuer()
        calls, made = open_calls(issuer, 1)
        await calls.look()
        await wait_for(lambda: made[0].refusal is not None)
        monkeypatch.setattr(lasting_calls, "REVIEW_S_MAX", 30.0)
        calls, made = open_calls(issuer, 2)
        await calls.look()
        monkeypatch.setattr(lasting_calls, "TURN_S_MAX", 0.0)
        await calls.look()
        assert sum(call.refusal is not None for call in made) == 1, "the one without a turn"
        await calls.stop()
        assert calls.statistics()["reviewing"] == 0, "none outlives its table"

    asyncio.run(scenario())
