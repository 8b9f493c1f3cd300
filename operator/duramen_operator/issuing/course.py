"""What to write next, so that a cluster has the certificates that it is to have.

A pure function of what stands there (and new keys), so an operator that is killed between any two
writes goes on by looking again. The order is fixed: the Secret of the CA with all that is going to
be issued, the record of the CAs, then one Secret after the other, each with bundle and certificates
in one patch. Each write holds only if its Secret still is as it was seen, so of two operators one
loses, and gives nothing away that is not noted.

Called by `driver`. Source: docs/kubernetes/security.md "Who issues", "Renewal".
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from duramen.runtime.identity.certificates import BACKDATED, LEAF_LIFE
from duramen.runtime.identity.names import IdentityError, parse_identity
from duramen.runtime.identity.succession import ANNOUNCED_FOR, Issued, Succession, name_authority
from duramen_operator.issuing.kept import REPLACE, Kept, name_keys, read_kept
from duramen_operator.issuing.leaves import Holding, choose_turn, fill, judge
from duramen_operator.issuing.secrets import (
    LEAF_SECRETS,
    Life,
    RecordWrite,
    Seen,
    WantedCertificates,
    Write,
    diff,
)
from duramen_operator.plan.cluster.nodes import CA

_TIME: Final = "%Y-%m-%d %H:%M UTC"
_REVOCATION: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})@(\S+)", re.ASCII)


class Issuance(NamedTuple):
    """What to write, and how it stands.

    Attributes:
        problems: what is not done, and why, for people.
        lives: the certificates that are there and valid, before the writes.
        lacking: names of those that are not, before the writes.
        waiting: what a person asks for that is refused, or has to wait.
        absent: Secrets that are not there, by the words of `nodes.SECRETS`.
    """

    writes: tuple[Write, ...] = ()
    problems: tuple[str, ...] = ()
    lives: tuple[Life, ...] = ()
    lacking: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()


def plan_issuance(wanted: WantedCertificates, seen: Seen, now: dt.datetime) -> Issuance:
    """The next writes, in order; none where all is as it is to be."""
    return _plan(wanted, seen, now)._replace(absent=seen.absent)


def _plan(wanted: WantedCertificates, seen: Seen, now: dt.datetime) -> Issuance:
    missing = tuple(seen.missing[which] for which in sorted(seen.missing))
    if CA not in seen.secrets:
        return Issuance(problems=missing)
    try:
        kept = read_kept(wanted, seen, now)
        if kept is None:
            return _found(wanted, seen, missing, now)
        return _go_on(wanted, seen, kept, missing, now)
    except IdentityError as error:
        return Issuance(problems=(*missing, str(error)))


def _found(
    wanted: WantedCertificates, seen: Seen, missing: tuple[str, ...], now: dt.datetime
) -> Issuance:
    """A first CA alone: what it issues comes when it is known that it is kept."""
    kept = Kept(Succession.begin(wanted.domain, now))
    write = diff(seen.secrets[CA], kept.encode())
    assert write is not None, "an empty Secret holds no CA"
    return Issuance((write,), missing)


def _go_on(
    wanted: WantedCertificates, seen: Seen, before: Kept, missing: tuple[str, ...], now: dt.datetime
) -> Issuance:
    problems, waiting = [*missing], []
    holdings = _judge_all(wanted, seen, before, now)
    is_followed = not missing and all(one.is_following for one in holdings)
    kept = before._replace(followed=(before.followed or now) if is_followed else None)
    try:
        # One step at a time: the record is to name the last one first, which `read_kept` counts on.
        kept = _step(wanted, kept, now) if name_keys(kept.succession) == seen.recorded else kept
    except IdentityError as error:
        waiting.append(str(error))
    try:
        kept = _revoke(wanted.revoked, kept, now)
    except IdentityError as error:
        waiting.append(str(error))
    is_same = kept.succession is before.succession
    after = holdings if is_same else _judge_all(wanted, seen, kept, now)
    turn = choose_turn(after, now)
    writes: list[Write] = []
    for one in after:
        chosen = (*one.lacking, *(one.due if one.which == turn else ()))
        try:
            write, lines = fill(one, chosen, kept.succession, now)
        except IdentityError as error:
            problems.append(str(error))
            write, lines = fill(one, (), kept.succession, now)
        kept = kept._replace(issued=(*kept.issued, *lines))
        writes += [write] if write is not None else []
    return Issuance(
        (*_write_kept(seen, before, kept, now), *writes),
        tuple(problems),
        tuple(life for one in holdings for life in one.lives.values()),
        tuple(place.name for one in holdings for place in one.lacking),
        tuple(waiting),
    )


def _write_kept(seen: Seen, before: Kept, kept: Kept, now: dt.datetime) -> Iterator[Write]:
    """The CA's Secret and the record, if they are to read otherwise."""
    is_waited_for = len(kept.succession.signers) > 1
    kept = kept if is_waited_for else kept._replace(followed=None, newer="")
    if kept != before:
        write = diff(seen.secrets[CA], kept.prune(now).encode())
        if write is not None:
            yield write
    names = name_keys(kept.succession)
    if names != seen.recorded:
        yield RecordWrite(names, seen.record_state)


def _judge_all(
    wanted: WantedCertificates, seen: Seen, kept: Kept, now: dt.datetime
) -> tuple[Holding, ...]:
    return tuple(
        judge(which, seen, wanted, kept, now) for which in LEAF_SECRETS if which in seen.secrets
    )


# --- Steps ---------------------------------------------------------------------------------------


def _step(wanted: WantedCertificates, kept: Kept, now: dt.datetime) -> Kept:
    """After the step that a person asks for, if it is its time; a step that was taken is none.

    Raises:
        IdentityError: it is refused, or has to wait.
    """
    succession = kept.succession
    is_two = len(succession.signers) > 1
    is_switched = is_two and name_keys(succession)[0] == kept.newer
    match wanted.step.split():
        case [] | ["replace", _]:
            return kept
        case ["announce"] if not is_two:
            both = succession.announce(wanted.domain, now)
            return kept._replace(succession=both, newer=name_keys(both)[1], followed=None)
        case ["announce"] if is_switched:
            return kept._replace(succession=succession.flip(), followed=None)
        case ["switch"] if not is_two:
            raise IdentityError("duramen.io/ca: switch: there is one CA: write announce first")
        case ["switch"] if not is_switched:
            _see_followed(kept, "switch", now)
            return kept._replace(succession=succession.flip(), followed=None)
        case ["retire"] if is_two:
            if _list_living(kept, now):
                _see_followed(kept, "retire", now)
            return kept._replace(succession=succession.retire(), newer="", followed=None)
        case ["announce"] | ["switch"] | ["retire"]:
            return kept
        case _:
            raise IdentityError(
                f"duramen.io/ca: {wanted.step!r} is no step: announce, switch, retire and "
                f"{REPLACE} with the lost CA's key identifier are"
            )


def _see_followed(kept: Kept, step: str, now: dt.datetime) -> None:
    if kept.followed is None:
        raise IdentityError(f"duramen.io/ca: {step} waits: not every Secret has the step before")
    until = kept.followed + ANNOUNCED_FOR
    if now < until:
        raise IdentityError(f"duramen.io/ca: {step} waits until {until:{_TIME}}")


def _list_living(kept: Kept, now: dt.datetime) -> list[Issued]:
    """Certificates of the CA that does not issue, which somebody may still show."""
    second, over = name_authority(kept.succession.signers[1]), kept.succession.list_revoked()
    return [
        one
        for one in kept.issued
        if one.issuer == second and one.ends > now and one.serial not in over
    ]


# --- Revocations ---------------------------------------------------------------------------------


def _revoke(text: str, kept: Kept, now: dt.datetime) -> Kept:
    """With what a person revokes: all that a node was given before a moment.

    A certificate knows the second in which it was made, and no more: one of that very second may be
    what took the place of those that are revoked.

    Raises:
        IdentityError: it cannot be read, or the moment has not come: what is made then would go,
            too, again and again.
    """
    moments: dict[str, dt.datetime] = {}
    for word in filter(None, re.split(r"[,\s]+", text)):
        name, moment = _parse_revocation(word, now)
        moments[name] = max(moment, moments.get(name, moment))
    over = kept.succession.list_revoked()
    # What a CA issued that is no more counts no more, and no list of ours could name it.
    issuers = set(map(name_authority, kept.succession.signers))
    serials = [
        one.serial
        for one in _find_given(kept.issued, moments)
        if one.issuer in issuers and one.serial not in over
    ]
    if not serials:
        return kept
    return kept._replace(succession=kept.succession.revoke(kept.issued, serials, now))


def _parse_revocation(word: str, now: dt.datetime) -> tuple[str, dt.datetime]:
    found = _REVOCATION.fullmatch(word)
    try:
        moment = dt.datetime.fromisoformat(found[2]) if found is not None else None
    except ValueError:
        moment = None
    if found is None or moment is None or moment.tzinfo is None:
        raise IdentityError(
            f"duramen.io/revoke: {word!r} is no POD@TIME, as main-bookie-0@2026-01-31T12:00:00Z"
        )
    if moment > now:
        raise IdentityError(f"duramen.io/revoke: {word!r} lies in time to come ({now:{_TIME}} now)")
    return found[1], moment.replace(microsecond=0)


def _find_given(issued: Iterable[Issued], moments: dict[str, dt.datetime]) -> Iterator[Issued]:
    for one in issued:
        try:
            name = parse_identity(one.identity).name
        except ValueError:
            continue  # the public port's, which is nobody's identity
        begins = one.begins or one.ends - LEAF_LIFE - BACKDATED
        if name in moments and begins + BACKDATED < moments[name]:
            yield one
