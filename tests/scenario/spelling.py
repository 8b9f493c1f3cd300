"""How a scenario's output spells effects, answers and nodes: one short line each.

Plain functions of values of the production cores; nothing here decides or remembers. Entries are
spelt `e<epoch>n<entry>`, a bookie by its name and, from its second life on, `name/life`. "Nothing
yet" is -1, as in the cores' own reprs.

Called by the stage and the interpreter. Source: docs/scenarios.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import assert_never

from duramen.core.reading import effects as rx
from duramen.core.segment import Fragment, Segment
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.exactly_once.stamps import ControlRecord, SnapshotPart, TokenRecord
from duramen.core.status import BookieStatus
from duramen.ids import LAST_ENTRY_ID, EntryId, LedgerId, Lsn, Member, epoch_of
from duramen.units import spell_duration
from duramen.wire.bookie_calls import ReadAnswer
from duramen.wire.entry import HEADER_BYTES, read_entry_info
from duramen.wire.exactly_once.control_record import read_control

Request = fx.SendAdd | fx.SendSeal | fx.SendRead | fx.SendLac | rx.SendRead
"""What is asked of a bookie."""

Inquiry = (
    fx.ReadMetadata | fx.Commit | fx.PersistOwed | fx.ReadSegment | fx.ReadHistory | rx.ReadMetadata
)
"""What is asked of the metadata store, and the history that a rebuild reads."""

Fate = fx.Complete | fx.CompleteEarly | fx.AlreadyStored | fx.Fail | fx.Yield
"""What a client gets to know."""


def spell_member(member: Member) -> str:
    """`b1`, and `b1/2` once its disks were replaced."""
    life = int(member.incarnation[:4], 16)
    return member.bookie if life == 1 else f"{member.bookie}/{life}"


def spell_members(members: Sequence[Member]) -> str:
    """Members in their order."""
    return " ".join(map(spell_member, members))


def spell_position(ledger_id: LedgerId, entry: EntryId) -> str:
    """`e1n0`."""
    return f"e{epoch_of(ledger_id)}n{entry}"


def spell_body(payload: bytes) -> str:
    """The names of the appends in an entry, or what a control entry says."""
    info = read_entry_info(payload)
    if info.is_control and not info.payload_bytes:
        return "[lac]"
    if info.is_control:
        return spell_control(read_control(payload[HEADER_BYTES:]))
    return "'" + payload[HEADER_BYTES:].decode().strip() + "'"


def spell_control(record: ControlRecord | None) -> str:
    """`[token t]`, `[snapshot through e1n3: p 0/7]`."""
    match record:
        case TokenRecord(token):
            return f"[token {token}]"
        case SnapshotPart(through, number, part_count, token, rows):
            part = "" if part_count == 1 else f" {number + 1} of {part_count}"
            said = [f"token {token}"] if token else []
            said += [f"{row.producer_id} {row.epoch}/{row.last}" for row in rows]
            lac = Lsn(through + 1)
            return f"[snapshot{part} before e{lac >> 32}n{lac & 0xFFFF_FFFF}: {', '.join(said)}]"
        case _:
            return "[control]"


def kind_of(call: Request | Inquiry) -> str:
    """The word by which `deliver` and `drop` select a message."""
    match call:
        case fx.SendAdd():
            return "add"
        case fx.SendSeal():
            return "seal"
        case fx.SendRead():
            return "read"
        case fx.SendLac():
            return "lac"
        case rx.SendRead():
            return "poll" if call.wait_us else "read"
        case fx.Commit():
            return "commit"
        case fx.PersistOwed():
            return "owed"
        case fx.ReadMetadata() | rx.ReadMetadata() | fx.ReadSegment():
            return "nodes"
        case fx.ReadHistory():
            return "history"
        case _:
            assert_never(call)


def spell_call(call: Request | Inquiry) -> str:
    """What is asked, without who is asked."""
    match call:
        case fx.SendAdd(_, ledger_id, entry, lac):
            flag = " by recovery" if call.is_recovery else ""
            flag += " control" if read_entry_info(call.payload).is_control else ""
            return f"add {spell_position(ledger_id, entry)} lac={lac}{flag}"
        case fx.SendSeal(_, _, epoch):
            return f"seal e{epoch}"
        case fx.SendRead(_, ledger_id, entry):
            return f"read {spell_position(ledger_id, entry)} under seal"
        case fx.SendLac(_, ledger_id, lac):
            ack_round = f" round={call.round_id}" if call.round_id else ""
            return f"lac e{epoch_of(ledger_id)} lac={lac}{ack_round}"
        case rx.SendRead(_, _, ledger_id, first, last):
            at = spell_position(ledger_id, first)
            if call.wait_us:
                return f"poll {at}, or lac ≥ {call.wait_for}"
            return f"read {at}" if last == first else f"read {at} … {_spell_last(last)}"
        case fx.Commit(_, writes):
            return f"commit {', '.join(map(spell_write, writes))}"
        case fx.PersistOwed(ledger_id, member, first, last):
            at = spell_position(ledger_id, first) + ("" if last == first else f" … {last}")
            return f"record owed to {spell_member(member)}: {at}"
        case fx.ReadMetadata():
            return "read nodes"
        case fx.ReadSegment(_, epoch):
            return f"read node of e{epoch}"
        case fx.ReadHistory(_, segment, first, last, is_headers_only):
            what = "headers" if is_headers_only else "history"
            upto = "" if first == last else f" … {last}"
            return f"read {what} e{segment.epoch}n{first}{upto}"
        case rx.ReadMetadata(epoch):
            return f"read node of e{epoch}"
        case _:
            assert_never(call)


def spell_asked(call: Request) -> str:
    """What an answer is about: as `spell_call`, without the LAC that travelled along."""
    return re.sub(r" lac=-?\d+", "", spell_call(call))


def spell_answer(call: Request, answer: ReadAnswer) -> str:
    """What a bookie says."""
    status = answer.status.name
    marks = f"lac={answer.lac} highest={answer.highest}"
    match call:
        case fx.SendSeal() if answer.status is BookieStatus.OK:
            return f"{status} {marks}"
        case fx.SendRead() | rx.SendRead() if answer.status is BookieStatus.OK:
            bodies = " ".join(spell_body(bytes(body)) for _, body in answer.entries)
            return f"{status} {bodies}{'' if isinstance(call, fx.SendRead) else f' {marks}'}"
        case rx.SendRead() if answer.status is BookieStatus.NO_ENTRY:
            return f"{status} {marks}{' sealed' * answer.is_sealed}"
        case _:
            return status


def spell_write(write: fx.Write) -> str:
    """One write of a `multi()`, with the version that it compares."""
    match write:
        case fx.SetSegment(segment, version):
            return f"{spell_segment(segment)} if v{version}"
        case fx.CreateSegment(segment):
            return f"new {spell_segment(segment)}"
        case fx.SetLog(log, version):
            clean = f"next=e{log.next_epoch} lce=e{log.last_clean_epoch}"
            records = f"records={log.totals.record_count}{log.spell_life()}"
            return f"log {clean} {records} if v{version}"
        case fx.ReplaceOwner(epoch, _):
            return "no owner" if epoch is None else f"owner e{epoch}"
        case _:
            assert_never(write)


def spell_segment(segment: Segment) -> str:
    """State, end and fragments of a segment."""
    end = ""
    if segment.last_entry is not None and segment.totals is not None:
        end = f" last={segment.last_entry} records={segment.totals.record_count}"
    if segment.bound is not None:
        end += f" bound={segment.bound}"
    for what, ranges in (("hole", segment.holes), ("lost", segment.lost)):
        for first, last in ranges:
            end += f" {what} {first}" if first == last else f" {what} {first} … {last}"
    return f"e{segment.epoch} {segment.state.value}{end} {spell_fragments(segment.fragments)}"


def spell_fragments(fragments: Sequence[Fragment]) -> str:
    """`0:[b1 b2 b3] 2:[b1 b2 b4]`."""
    return " ".join(f"{f.first_entry}:[{spell_members(f.ensemble)}]" for f in fragments)


def spell_fate(effect: Fate, name: str) -> str:
    """The fate of one append."""
    match effect:
        case fx.Complete(is_duplicate=True):
            return f"{name} is a duplicate of {effect.start}, seq {effect.seq_num}"
        case fx.AlreadyStored():
            return f"{name} is an old duplicate"
        case fx.Complete():
            return f"{name} acknowledged at {effect.start}, seq {effect.seq_num}"
        case fx.CompleteEarly():
            return f"{name} acknowledged early at {effect.start}"
        case fx.Fail(_, code, detail):
            return f"{name} {code}: {detail.split(';')[0]}"
        case fx.Yield():
            return f"{name} given back: never sent, the owner is another"
        case _:
            assert_never(effect)


def spell_delivery(effect: rx.Deliver) -> str:
    """What a reader hands on."""
    epoch = effect.epoch
    entries = " ".join(f"e{epoch}n{entry} {spell_body(body)}" for entry, body in effect.entries)
    return f"delivers {entries} (e{epoch} starts at seq {effect.start_seq_num})"


def spell_wait(delay_us: int) -> str:
    """A pause that a core asks for."""
    return f"wakes in {spell_duration(delay_us)}"


def _spell_last(last: EntryId) -> str:
    return "end" if last == LAST_ENTRY_ID else str(last)
