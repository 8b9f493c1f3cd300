"""How the random world of `core_world` spells entries, and effects in its story.

Entries are real ones; a story line is for people who look for what went wrong. Used by `core_world`
and by what drives the same cores. Not here: what happens.
"""

from __future__ import annotations

from collections.abc import Sequence

from duramen.core.segment import Totals
from duramen.core.sequencer import effects as fx
from duramen.ids import EntryId, LedgerId, epoch_of
from duramen.wire.entry import CONTROL, STATE, encode_entry


def encode_plain_entry(  # noqa: PLR0917 - the signature of `EncodeEntry`
    ledger_id: LedgerId,
    entry: EntryId,
    before: Totals,
    batches: Sequence[bytes],
    record_count: int,
    after: Totals,
    *,
    is_control: bool = False,
    has_state: bool = False,
    is_compressing: bool = False,
) -> bytes:
    """A real entry around stand-ins for batches."""
    return encode_entry(
        ledger_id=ledger_id,
        entry_id=entry,
        before=before,
        batches=batches,
        record_count=record_count,
        after=after,
        flags=CONTROL * is_control | STATE * has_state,
        is_compressing=is_compressing,
    )


def format_effect(effect: fx.Effect) -> str:
    """One effect in a few words."""
    match effect:
        case fx.SendAdd(member, ledger_id, entry, lac, _, is_recovery):
            kind = "write back" if is_recovery else "add"
            return f"{kind} e{epoch_of(ledger_id)}n{entry} lac {lac} to {member.bookie}"
        case fx.SendSeal(member, _, epoch):
            return f"seal e{epoch} at {member.bookie}"
        case fx.SendRecoveryRead(member, ledger_id, entry):
            return f"read e{epoch_of(ledger_id)}n{entry} from {member.bookie}"
        case fx.SendLac(member, ledger_id, lac):
            return f"lac e{epoch_of(ledger_id)} {lac} to {member.bookie}"
    return repr(effect)


def format_writes(writes: tuple[fx.Write, ...]) -> str:
    """What a commit would write."""
    return "; ".join(
        repr(write.segment) if isinstance(write, fx.SetSegment | fx.CreateSegment)
        else repr(write.log) if isinstance(write, fx.SetLog)
        else f"owner {write.epoch}"
        for write in writes
    )  # fmt: skip
