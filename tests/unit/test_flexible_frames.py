"""Frames that carry envelopes and filters: round trips, and refusals that say what is wrong.

Their golden files, and what is tested of every frame, stand in `test_frames`.
Source: docs/protocol/envelopes.md.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.ids import NOTHING, EntryId, LedgerId
from duramen.wire import bookie_calls as calls
from duramen.wire.bookie_calls import Add, ServiceClass
from duramen.wire.envelope import ENVELOPE_BYTES_MAX
from duramen.wire.frame import FrameError, frame_version
from tests.unit.flexible_frames import ADDS, LEDGER, LIFE

entry_ids = st.integers(0, 0xFFFF_FFFE).map(EntryId)


# --- Adds ----------------------------------------------------------------------------------------


@st.composite
def adds(draw: st.DrawFn) -> Add:
    """A row of either version."""
    entry = draw(entry_ids)
    lac = EntryId(draw(st.integers(-1, entry - 1)))
    return Add(
        LedgerId(draw(st.integers(0, (1 << 64) - 1))), entry, lac, draw(st.binary(max_size=9)),
        draw(st.booleans()), draw(st.sampled_from(ServiceClass)),
        envelope=draw(st.binary(max_size=16)),
    )  # fmt: skip


@given(st.lists(adds(), max_size=4))
def test_adds_come_out_as_they_went_in(rows: list[Add]) -> None:
    frame = calls.pack_adds(LIFE, rows)
    assert frame_version(frame) == (2 if any(row.envelope for row in rows) else 1)
    assert calls.parse_any_adds(frame) == (LIFE, rows)


def test_v4_who_keeps_no_envelopes_refuses_the_frame_whole() -> None:
    """Rows of both versions are as long, so that the version alone tells them apart."""
    with pytest.raises(FrameError, match="frame version 2 with rows of 28 bytes is not spoken"):
        calls.parse_adds(calls.pack_adds(LIFE, ADDS))


def test_a_frame_without_envelopes_is_that_of_version_1() -> None:
    plain = [row._replace(envelope=b"") for row in ADDS]
    frame = calls.pack_adds(LIFE, plain)
    assert calls.parse_adds(frame) == calls.parse_any_adds(frame) == (LIFE, plain)
    assert calls.parse_any_adds(calls.pack_adds(LIFE, []))[1] == []


def test_an_envelope_may_be_as_long_as_any_is_and_no_longer() -> None:
    longest = Add(LEDGER, EntryId(3), NOTHING, b"", envelope=b"e" * ENVELOPE_BYTES_MAX)
    assert calls.parse_any_adds(calls.pack_adds(LIFE, [longest]))[1] == [longest]
    longer = longest._replace(envelope=b"e" * (ENVELOPE_BYTES_MAX + 1))
    with pytest.raises(FrameError, match="entry 3: an envelope of 521 bytes"):
        calls.parse_any_adds(calls.pack_adds(LIFE, [longer]))


@pytest.mark.parametrize("entry", [3, 0xFFFF_FFFF])
def test_an_add_with_an_envelope_keeps_its_lac_below_its_entry(entry: int) -> None:
    lac = EntryId(3) if entry == 3 else NOTHING
    row = ADDS[1]._replace(entry_id=EntryId(entry), lac=lac)
    with pytest.raises(FrameError, match=f"add of entry {entry}"):
        calls.parse_any_adds(calls.pack_adds(LIFE, [row]))


def test_a_wave_has_no_place_beside_an_envelope() -> None:
    with pytest.raises(AssertionError, match="one place"):
        calls.pack_adds(LIFE, [ADDS[0]._replace(wave=3), ADDS[1]])
    assert struct.unpack_from("<H", calls.pack_adds(LIFE, [ADDS[1]]), 36 + 18)[0] == 16
