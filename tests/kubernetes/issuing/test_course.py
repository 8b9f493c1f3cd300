"""What the issuer writes, and in which order: founding, renewal, another CA, revocation, damage.

`World` sees behind each write that nobody has what he may not have yet.
"""

from __future__ import annotations

import datetime as dt
import itertools
import random

import pytest
from cryptography import x509

from duramen_operator.issuing import kept as issuing_kept
from duramen_operator.issuing.secrets import LEAF_SECRETS, RecordWrite, Seen
from duramen_operator.plan.cluster.nodes import CA, PUBLIC
from tests.kubernetes.issuing.world import DAY, MINUTE, NOW, Conflict, World, want


def founded() -> World:
    world = World()
    world.settle()
    return world


def test_a_new_cluster_gets_a_ca_then_its_record_then_all_certificates() -> None:
    world = World()
    first = world.plan().writes
    assert [repr(one).split(" at ")[0] for one in first] == ["<write of Secret main-ca"]
    world.do(first)
    second = world.plan().writes
    assert isinstance(second[1], RecordWrite)
    assert [getattr(one, "name", "record") for one in second] == [
        "main-ca", "record", *(f"main-{which}" for which in LEAF_SECRETS),
    ]  # fmt: skip
    world.do(second)
    world.now += 3 * MINUTE
    issuance = world.settle()
    assert not issuance.problems
    assert not issuance.lacking
    assert {life.which for life in issuance.lives} == set(LEAF_SECRETS)
    assert world.recorded == world.authorities()


@pytest.mark.parametrize("most", range(12))
def test_killed_behind_any_write_of_its_founding_it_goes_on_with_one_ca(most: int) -> None:
    world = World()
    left = most
    while left > 0:
        writes = world.plan().writes
        world.do(writes, left)
        left -= len(writes)
    kept = world.authorities() if world.secrets[CA] else None
    issuance = world.settle()
    assert kept in (None, world.authorities()), "there is a second CA"
    assert not issuance.lacking


def test_nothing_is_shown_of_what_a_secret_holds() -> None:
    world = World()
    world.do(world.plan().writes)
    text = repr(world.plan()) + repr(world.see())
    assert "main-bookie-0.tls.key" in text, "it names items"
    assert "PRIVATE" not in text


def test_one_role_is_renewed_at_a_time_and_the_next_has_to_wait() -> None:
    world = founded()
    serials = {which: world.leaves(which) for which in LEAF_SECRETS}
    world.now = NOW + 4 * DAY
    assert not world.plan().writes, "two thirds are not over"
    world.now = NOW + 5 * DAY
    order = []
    for _ in range(40):
        writes = [one for one in world.plan().writes if not isinstance(one, RecordWrite)]
        world.do(tuple(writes))
        names = [one.name for one in writes if one.name != "main-ca"]
        assert len(names) <= 1
        order += [(name, world.now) for name in names]
        world.now += MINUTE / 2
    assert [name for name, _ in order] == [f"main-{which}" for which in LEAF_SECRETS]
    gaps = [after - before for (_, before), (_, after) in itertools.pairwise(order)]
    assert min(gaps) >= 2 * MINUTE
    for which, before in serials.items():
        after = world.leaves(which)
        assert all(after[name].serial_number != one.serial_number for name, one in before.items())


def test_a_new_pod_does_not_wait_for_its_turn() -> None:
    world = founded()
    before = world.leaves("bookies")
    world.wanted = want(bookies=3)
    world.do(world.plan().writes)
    after = world.leaves("bookies")
    assert set(after) - set(before) == {"main-bookie-2"}
    assert all(after[name] == one for name, one in before.items()), "the others keep theirs"


def test_a_pod_that_goes_keeps_its_certificate_until_that_ends() -> None:
    world = founded()
    world.wanted = want(bookies=1)
    world.settle()
    assert "main-bookie-1.tls.key" in world.secrets["bookies"]
    world.now = NOW + 8 * DAY
    world.settle()
    assert "main-bookie-1.tls.key" not in world.secrets["bookies"]
    assert "main-bookie-1.tls.crt" not in world.secrets["bookies"]


def test_what_has_ended_is_noted_no_more() -> None:
    world = founded()
    count = len(world.noted())
    for _ in range(3):
        world.now += 5 * DAY
        world.settle()
    assert len(world.noted()) <= 2 * count


# --- Damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "items",
    [
        {"main-bookie-0.tls.key": None},
        {"main-bookie-0.tls.crt": b"rubbish"},
        {"ca.crt": None},
        {"ca.crl": b""},
        dict.fromkeys(("ca.crt", "main-bookie-0.tls.crt", "main-bookie-0.tls.key")),
    ],
)
def test_what_a_hand_took_away_is_mended(items: dict[str, bytes | None]) -> None:
    world = founded()
    authorities = world.authorities()
    world.change("bookies", items)
    world.do(world.plan().writes)
    world.see_held("bookies")
    assert world.authorities() == authorities


def test_a_neighbours_key_is_not_left_in_a_place() -> None:
    world = founded()
    data = world.secrets["bookies"]
    world.change(
        "bookies",
        {f"main-bookie-0.tls.{end}": data[f"main-bookie-1.tls.{end}"] for end in ("crt", "key")},
    )
    world.do(world.plan().writes)
    world.see_held("bookies")


def test_what_the_ca_has_forgotten_is_replaced() -> None:
    world = founded()
    before = world.leaves("zookeeper")["main-zookeeper-0"]
    lines = world.secrets[CA]["issued.jsonl"].splitlines(keepends=True)
    kept = [line for line in lines if f"{before.serial_number:x}".encode() not in line]
    world.change(CA, {"issued.jsonl": b"".join(kept)})
    world.settle()
    assert world.leaves("zookeeper")["main-zookeeper-0"] != before


def test_a_secret_that_is_emptied_again_and_again_costs_nobody_else_his_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = founded()
    first = world.leaves("zookeeper"), world.leaves("operator")
    bound = len(world.noted()) + 3
    monkeypatch.setattr(issuing_kept, "ISSUED_COUNT_MAX", bound)
    for _ in range(20):
        world.change("bookies", dict.fromkeys(world.secrets["bookies"]))
        world.settle()
    assert len(world.noted()) == bound
    assert (world.leaves("zookeeper"), world.leaves("operator")) == first
    assert {leaf.serial_number for leaf in world.leaves("bookies").values()} <= world.noted()


def test_items_of_others_stay() -> None:
    world = founded()
    world.change(PUBLIC, {"note": b"mine"})
    world.now += 5 * DAY
    world.settle()
    assert world.secrets[PUBLIC]["note"] == b"mine"


def test_a_missing_secret_keeps_nobody_else_waiting() -> None:
    world = World()
    del world.secrets["sequencers"]
    issuance = world.settle()
    assert issuance.problems == ("there is no Secret main-sequencers",)
    assert {life.which for life in issuance.lives} == {*LEAF_SECRETS} - {"sequencers"}


def test_names_that_no_certificate_can_hold_are_told_and_the_others_are_served() -> None:
    world = World()
    first, *rest = world.wanted.nodes
    long = first._replace(hosts=tuple(f"{'a' * 60}.{n}.example.org" for n in range(9)))
    world.wanted = world.wanted._replace(nodes=(long, *rest))
    world.do(world.plan().writes)
    issuance = world.plan()
    assert "main-bookie-0 would name more than 8 hosts" in issuance.problems[0]
    assert {"main-zookeeper", "main-public"} <= {
        getattr(one, "name", "") for one in issuance.writes
    }


# --- The CA itself -------------------------------------------------------------------------------


def test_a_lost_ca_is_not_made_anew_until_somebody_asks() -> None:
    world = founded()
    (lost,) = world.authorities()
    before = dict(world.secrets["bookies"])
    world.change(CA, dict.fromkeys(world.secrets[CA]))
    issuance = world.plan()
    assert not issuance.writes
    assert f"the CA {lost} of this cluster is lost" in issuance.problems[0]
    world.wanted = want(step="replace 0000")
    assert not world.plan().writes, "another one was meant"
    assert world.secrets["bookies"] == before
    world.wanted = want(step=f"replace {lost}")
    world.settle()
    assert world.authorities() not in ((lost,), ())
    assert world.recorded == world.authorities()
    again = world.authorities()
    world.change(CA, dict.fromkeys(world.secrets[CA]))
    assert not world.plan().writes, "that was asked for once"
    assert again[0] in world.plan().problems[0]


def test_a_ca_is_lost_too_if_its_record_went_with_it() -> None:
    world = founded()
    (lost,) = world.authorities()
    world.change(CA, dict.fromkeys(world.secrets[CA]))
    world.recorded = ()
    issuance = world.plan()
    assert not issuance.writes
    assert lost in issuance.problems[0]


@pytest.mark.parametrize("which", LEAF_SECRETS)
def test_no_ca_is_made_while_a_secret_that_is_there_cannot_be_read(which: str) -> None:
    world = World()
    seen = world.see()
    held = {name: one for name, one in seen.secrets.items() if name != which}
    issuance = world.plan(seen._replace(secrets=held, missing={which: "refused"}))
    assert not issuance.writes
    assert issuance.problems[0] == "refused"
    assert issuance.problems[1].endswith(f"no other Secret trusts one: {which}")


def test_a_record_that_went_alone_is_written_again() -> None:
    world = founded()
    world.recorded = ()
    world.settle()
    assert world.recorded == world.authorities()


def test_another_ca_than_the_records_is_not_taken() -> None:
    world, other = founded(), founded()
    (own,) = world.authorities()
    world.change(CA, dict(other.secrets[CA]))
    issuance = world.plan()
    assert not issuance.writes
    assert f"the record says {own}" in issuance.problems[0]
    world.wanted = want(step=f"replace {own}")
    world.settle()
    assert world.recorded == other.authorities()


def test_a_backup_of_before_a_step_is_taken_only_where_the_same_ca_issues() -> None:
    world = founded()
    kept = {"": dict(world.secrets[CA])}
    for step in ("announce", "switch", "retire"):
        world.wanted = want(step=step)
        world.settle()
        world.now += DAY + 10 * MINUTE
        world.settle()
        kept[step] = dict(world.secrets[CA])
        refused = {"switch": [""], "retire": ["", "announce", "switch"]}.get(step, [])
        for backup in refused:
            world.change(CA, {**dict.fromkeys(world.secrets[CA]), **kept[backup]})
            issuance = world.plan()
            assert not issuance.writes, (step, backup)
            assert f"the record says {', '.join(world.recorded)}" in issuance.problems[0]
            world.change(CA, {**dict.fromkeys(kept[backup]), **kept[step]})
            assert not world.plan().problems


@pytest.mark.parametrize("step", ["announce", "switch", "retire"])
def test_killed_between_a_step_and_its_record_it_goes_on_though_another_is_asked(step: str) -> None:
    world = founded()
    for wanted in ("announce", "switch", "retire"):
        world.wanted = want(step=wanted)
        if wanted == step:
            break
        world.settle()
        world.now += DAY + 10 * MINUTE
        world.settle()
    world.now += DAY + 10 * MINUTE
    world.do(world.plan().writes, 1)
    there = world.authorities()
    assert there != world.recorded
    for other in ("announce", "switch", "retire"):
        world.wanted = want(step=other)
        assert RecordWrite(there) in world.plan().writes, "it comes before another step"
    world.settle()
    assert world.recorded == world.authorities()


def test_the_ca_of_another_cluster_is_not_taken() -> None:
    world = founded()
    world.wanted = want(domain="f" * 32)
    issuance = world.plan()
    assert not issuance.writes
    assert "if that one is gone for good" in issuance.problems[0]


@pytest.mark.parametrize("name", ["ca.key", "ca.crt", "ca.crl", "issued.jsonl", "course.json"])
def test_a_ca_that_cannot_be_read_issues_nothing(name: str) -> None:
    world = founded()
    world.change(CA, {name: b"rubbish\n"})
    issuance = world.plan()
    assert not issuance.writes
    assert name in issuance.problems[0]
    assert "rubbish" not in issuance.problems[0]


def test_a_clock_before_the_ca_issues_nothing() -> None:
    world = founded()
    world.now = NOW - DAY
    issuance = world.plan()
    assert not issuance.writes
    assert "is not yet valid" in issuance.problems[0]


# --- Another CA ----------------------------------------------------------------------------------


def test_another_ca_takes_the_place_of_the_first_in_three_steps() -> None:
    world = founded()
    (first,) = world.authorities()
    world.wanted = want(step="announce")
    world.settle()
    assert len(world.authorities()) == 2
    assert world.authorities()[0] == first
    assert all(len(world.anchors(which)) == 2 for which in LEAF_SECRETS)
    world.wanted = want(step="switch")
    assert "waits until" in world.settle().waiting[0]
    assert world.authorities()[0] == first
    world.now += DAY
    world.settle()
    second = world.authorities()[0]
    assert second != first
    assert world.authorities() == (second, first)
    assert not any(world.is_due(which) for which in LEAF_SECRETS)
    world.wanted = want(step="retire")
    assert "waits until" in world.plan().waiting[0]
    world.now += DAY
    world.settle()
    assert world.authorities() == world.recorded == (second,)
    assert all(len(world.anchors(which)) == 1 for which in LEAF_SECRETS)
    world.wanted = want(step="switch")
    assert "write announce first" in world.plan().waiting[0]


def test_what_was_switched_is_switched_back_and_what_was_announced_retired() -> None:
    world = founded()
    (first,) = world.authorities()
    world.wanted = want(step="announce")
    world.settle()
    world.now += DAY + MINUTE
    world.wanted = want(step="switch")
    world.settle()
    world.wanted = want(step="announce")
    world.settle()
    assert world.authorities()[0] == first
    world.wanted = want(step="retire")
    assert world.settle().waiting, "somebody may show a certificate of the second one"
    world.now += DAY + MINUTE
    world.settle()
    assert world.authorities() == (first,)


def test_a_step_waits_for_a_secret_that_has_not_the_one_before() -> None:
    world = founded()
    world.wanted = want(step="announce")
    world.settle()
    missing = world.secrets.pop("monitor")
    world.now += 2 * DAY
    world.wanted = want(step="switch")
    assert "not every Secret has the step before" in world.settle().waiting[0]
    world.secrets["monitor"] = missing
    world.settle()
    assert "waits until" in world.plan().waiting[0], "the day begins when all have it"


def test_an_unknown_step_is_told() -> None:
    world = founded()
    world.wanted = want(step="swich")
    issuance = world.plan()
    assert not issuance.writes
    assert "'swich' is no step" in issuance.waiting[0]


# --- Revocation ----------------------------------------------------------------------------------


def test_what_a_pod_was_given_until_a_moment_is_revoked_and_replaced() -> None:
    world = founded()
    before = world.leaves("bookies")
    text = f"main-bookie-0@{world.now.isoformat()}"
    world.now += MINUTE
    world.wanted = want(revoked=text)
    world.settle()
    after = world.leaves("bookies")
    assert after["main-bookie-0"] != before["main-bookie-0"]
    assert after["main-bookie-1"] == before["main-bookie-1"]
    (lists,) = {world.secrets[which]["ca.crl"] for which in LEAF_SECRETS}
    revoked = {one.serial_number for one in x509.load_pem_x509_crl(lists)}
    assert revoked == {before["main-bookie-0"].serial_number}
    world.now += DAY
    assert not world.plan().writes, "it is revoked once"


def test_what_takes_its_place_in_the_same_second_is_not_revoked() -> None:
    """People write whole seconds, and certificates know no others."""
    world = founded()
    before = world.leaves("bookies")
    moment = (world.now + MINUTE).replace(microsecond=0)
    world.now = moment + dt.timedelta(milliseconds=400)
    world.wanted = want(revoked=f"main-bookie-0@{moment.isoformat()}")
    world.do(world.plan().writes)
    after = world.leaves("bookies")
    assert after["main-bookie-0"] != before["main-bookie-0"]
    assert not world.plan().writes
    world.settle()
    assert world.leaves("bookies") == after


def test_what_was_revoked_of_a_ca_that_is_no_more_is_not_revoked_again() -> None:
    """The way of a stolen key: revoke, then another CA; the annotation stays."""
    world = founded()
    world.now += DAY
    text = f"main-writeproxy-0@{(world.now - MINUTE).isoformat()}"
    for step in ("", "announce", "switch", "retire"):
        world.wanted = want(step=step, revoked=text)
        world.settle()
        world.now += DAY + 10 * MINUTE
        world.settle()
    assert len(world.authorities()) == 1
    assert not world.plan().writes


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("main-bookie-0", "is no POD@TIME"),
        ("main-bookie-0@noon", "is no POD@TIME"),
        ("main-bookie-0@2026-03-01T00:00:00", "is no POD@TIME"),
        ("main-bookie-0@2027-01-01T00:00:00Z", "lies in time to come"),
    ],
)
def test_a_revocation_that_is_none_is_told(text: str, why: str) -> None:
    world = founded()
    world.wanted = want(revoked=text)
    issuance = world.plan()
    assert not issuance.writes
    assert why in issuance.waiting[0]


# --- Histories -----------------------------------------------------------------------------------


def test_of_two_operators_one_loses() -> None:
    world = World()
    first = world.plan().writes
    second = world.plan().writes
    world.do(first)
    with pytest.raises(Conflict):
        world.do(second)
    (authority,) = world.authorities()
    world.settle()
    assert world.authorities() == (authority,)


@pytest.mark.parametrize("seed", range(8))
def test_histories_with_deaths_hands_clocks_and_two_operators_end_well(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    stale, latest = world.see(), world.now
    for _ in range(30):
        latest = max(latest, world.now)
        match rng.randrange(9):
            case 0:
                world.now += rng.choice([MINUTE, DAY / 3, DAY, 3 * DAY])
            case 1:
                world.now = max(NOW, world.now - rng.choice([MINUTE, DAY]))
            case 2:
                world.wanted = want(rng.randrange(1, 5), world.wanted.step, world.wanted.revoked)
            case 3:
                world.wanted = world.wanted._replace(
                    step=rng.choice(["", "announce", "switch", "retire"])
                )
            case 4:
                _damage(world, rng)
            case 5:
                moment = world.now - rng.choice([dt.timedelta(0), DAY])
                text = f"main-bookie-{rng.randrange(3)}@{moment.isoformat()}"
                world.wanted = world.wanted._replace(revoked=text)
            case 6:
                stale = world.see()
            case _:
                _pass(world, stale if rng.randrange(4) == 0 else world.see(), rng)
    # A CA that a clock made which was ahead is not valid before that clock's time.
    world.now = latest + 2 * MINUTE
    issuance = world.settle()
    assert not issuance.problems
    assert not issuance.lacking
    for which in LEAF_SECRETS:
        world.see_held(which)


def _pass(world: World, seen: Seen, rng: random.Random) -> None:
    writes = world.plan(seen).writes
    most = rng.choice([None, rng.randrange(len(writes) + 1)])
    try:
        world.do(writes, most)
    except Conflict:
        return


def _damage(world: World, rng: random.Random) -> None:
    which = rng.choice(LEAF_SECRETS)
    names = sorted(world.secrets[which])
    if names:
        world.change(which, {rng.choice(names): rng.choice([None, b"", b"rubbish"])})
