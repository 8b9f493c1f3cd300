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

from duramen.core.flexible.segment import AnySegment
from duramen.core.reading import effects as rx
from duramen.core.segment import Fragment, Segment
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.exactly_once.stamps import ControlRecord, SnapshotPart, TokenRecord
from duramen.core.status import BookieStatus
from duramen.ids import LAST_ENTRY_ID, EntryId, LedgerId, Lsn, Member, epoch_of
from duramen.units import format_duration
from duramen.wire.bookie_calls import ReadAnswer
from duramen.wire.control_record import read_control
from duramen.wire.entry import HEADER_BYTES, read_entry_info

Request = (
    fx.SendAdd
    | fx.SendWave
    | fx.SendSeal
    | fx.SendDigest
    | fx.SendRecoveryRead
    | fx.SendLac
    | rx.SendRead
)
"""What is asked of a bookie."""

Inquiry = (
    fx.ReadMetadata
    | fx.Commit
    | fx.PersistOwed
    | fx.ReadSegment
    | fx.ReadHistory
    | rx.WatchMetadata
    | rx.ConfirmAbsence
)
"""What is asked of the metadata store, and the history that a rebuild reads."""

Fate = fx.Complete | fx.CompleteEarly | fx.OldDuplicate | fx.Fail | fx.Yield
"""What a client gets to know."""


def format_member(member: Member) -> str:
    """`b1`, and `b1/2` once its disks were replaced."""
    if member == rx.ALL_NODES:
        return "nodes"
    life = int(member.incarnation[:4], 16)
    return member.bookie if life == 1 else f"{member.bookie}/{life}"


def format_members(members: Sequence[Member]) -> str:
    """Members in their order."""
    return " ".join(map(format_member, members))


def format_position(ledger_id: LedgerId, entry: EntryId) -> str:
    """`e1n0`."""
    return f"e{epoch_of(ledger_id)}n{entry}"


def format_body(payload: bytes) -> str:
    """The names of the appends in an entry, or what a control entry says."""
    info = read_entry_info(payload)
    if info.is_control and not info.payload_bytes:
        return "[lac]"
    if info.is_control:
        return encode_control(read_control(payload[HEADER_BYTES:]))
    return "'" + payload[HEADER_BYTES:].decode().strip() + "'"


def encode_control(record: ControlRecord | None) -> str:
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
        case fx.SendAdd() | fx.SendWave():
            return "add"
        case fx.SendSeal():
            return "seal"
        case fx.SendDigest():
            return "digest"
        case fx.SendRecoveryRead():
            return "read"
        case fx.SendLac():
            return "lac"
        case rx.SendRead():
            return "poll" if call.wait_us else "read"
        case fx.Commit():
            return "commit"
        case fx.PersistOwed():
            return "owed"
        case fx.ReadMetadata() | rx.WatchMetadata() | fx.ReadSegment() | rx.ConfirmAbsence():
            return "nodes"
        case fx.ReadHistory():
            return "history"
        case _:
            assert_never(call)


def format_call(call: Request | Inquiry) -> str:
    """What is asked, without who is asked."""
    match call:
        case fx.SendAdd(_, ledger_id, entry, lac):
            flag = " by recovery" if call.is_recovery else ""
            flag += " control" if read_entry_info(call.payload).is_control else ""
            return f"add {format_position(ledger_id, entry)} lac={lac}{flag}"
        case fx.SendWave(_, ledger_id, entry, lac):
            flag = " by recovery" if call.is_recovery else ""
            flag += " control" if read_entry_info(call.payload).is_control else ""
            numbers = " ".join(map(str, call.copyset))
            return f"add {format_position(ledger_id, entry)} lac={lac} copyset=[{numbers}]{flag}"
        case fx.SendSeal(_, _, epoch):
            return f"seal e{epoch}"
        case fx.SendDigest(_, ledger_id, first, last):
            return f"digest {format_position(ledger_id, first)} … {_format_last(last)} under seal"
        case fx.SendRecoveryRead(_, ledger_id, entry):
            return f"read {format_position(ledger_id, entry)} under seal"
        case fx.SendLac(_, ledger_id, lac):
            ack_round = f" round={call.round_id}" if call.round_id else ""
            return f"lac e{epoch_of(ledger_id)} lac={lac}{ack_round}"
        case rx.SendRead(_, _, ledger_id, first, last):
            at = format_position(ledger_id, first)
            if call.wait_us:
                return f"poll {at}, or lac ≥ {call.wait_for}"
            return f"read {at}" if last == first else f"read {at} … {_format_last(last)}"
        case _:
            return _format_inquiry(call)


def _format_inquiry(call: Inquiry) -> str:
    match call:
        case fx.Commit(_, writes):
            return f"commit {', '.join(map(format_write, writes))}"
        case fx.PersistOwed(ledger_id, member, first, last):
            at = format_position(ledger_id, first) + ("" if last == first else f" … {last}")
            return f"record owed to {format_member(member)}: {at}"
        case fx.ReadMetadata():
            return "read nodes"
        case fx.ReadSegment(_, epoch):
            return f"read node of e{epoch}"
        case fx.ReadHistory(_, segment, first, last, is_headers_only):
            what = "headers" if is_headers_only else "history"
            upto = "" if first == last else f" … {last}"
            return f"read {what} e{segment.epoch}n{first}{upto}"
        case rx.WatchMetadata(epoch) | rx.ConfirmAbsence(epoch):
            return f"read node of e{epoch}"
        case _:
            assert_never(call)


def format_asked(call: Request) -> str:
    """What an answer is about: as `format_call`, without the LAC that travelled along."""
    return re.sub(r" (lac=-?\d+|copyset=\[[\d ]*\])", "", format_call(call))


def format_answer(call: Request, answer: ReadAnswer) -> str:
    """What a bookie says."""
    status = answer.status.name
    marks = f"lac={answer.lac} highest={answer.highest}"
    match call:
        case fx.SendSeal() if answer.status is BookieStatus.OK:
            return f"{status} {marks}"
        case fx.SendRecoveryRead() | rx.SendRead() if answer.status is BookieStatus.OK:
            bodies = " ".join(format_body(bytes(body)) for _, body in answer.entries)
            return (
                f"{status} {bodies}{'' if isinstance(call, fx.SendRecoveryRead) else f' {marks}'}"
            )
        case rx.SendRead() if answer.status is BookieStatus.NO_ENTRY:
            return f"{status} {marks}{' sealed' * answer.is_sealed}"
        case _:
            return status


def format_write(write: fx.Write) -> str:
    """One write of a `multi()`, with the version that it compares."""
    match write:
        case fx.SetSegment(segment, version):
            return f"{format_segment(segment)} if v{version}"
        case fx.CreateSegment(segment):
            return f"new {format_segment(segment)}"
        case fx.SetLog(log, version):
            clean = f"next=e{log.next_epoch} lce=e{log.last_clean_epoch}"
            records = f"records={log.totals.record_count}{log.format_life()}"
            return f"log {clean} {records} if v{version}"
        case fx.ReplaceOwner(epoch, _):
            return "no owner" if epoch is None else f"owner e{epoch}"
        case _:
            assert_never(write)


def format_segment(segment: AnySegment) -> str:
    """State, end and fragments of a segment."""
    end = "" if segment.ack_mode == "ordered" else f" {segment.ack_mode}"
    if segment.last_entry is not None and segment.totals is not None:
        end += f" last={segment.last_entry} records={segment.totals.record_count}"
    if segment.bound is not None:
        end += f" bound={segment.bound}"
    for what, ranges in (("hole", segment.holes), ("lost", segment.lost)):
        for first, last in ranges:
            end += f" {what} {first}" if first == last else f" {what} {first} … {last}"
    where = (
        format_fragments(segment.fragments)
        if isinstance(segment, Segment)
        else f"nodes:[{' '.join(f'{r.number}:{format_member(r.member)}' for r in segment.nodes)}]"
    )
    return f"e{segment.epoch} {segment.state.value}{end} {where}"


def format_fragments(fragments: Sequence[Fragment]) -> str:
    """`0:[b1 b2 b3] 2:[b1 b2 b4]`."""
    return " ".join(f"{f.first_entry}:[{format_members(f.ensemble)}]" for f in fragments)


def format_fate(effect: Fate, name: str) -> str:
    """The fate of one append."""
    match effect:
        case fx.Complete(is_duplicate=True):
            return f"{name} is a duplicate of {effect.start}, seq {effect.seq_num}"
        case fx.OldDuplicate():
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


def format_delivery(effect: rx.Deliver) -> str:
    """What a reader hands on."""
    epoch = effect.epoch
    entries = " ".join(f"e{epoch}n{entry} {format_body(body)}" for entry, body in effect.entries)
    return f"delivers {entries} (e{epoch} starts at seq {effect.start_seq_num})"


def format_wait(delay_us: int) -> str:
    """A pause that a core asks for."""
    return f"wakes in {format_duration(delay_us)}"


def _format_last(last: EntryId) -> str:
    return "end" if last == LAST_ENTRY_ID else str(last)
