"""What the writer of an open segment keeps, divided by the state that each part owns.

`window` holds what is not acknowledged, `owed_copies` what is acknowledged and lacks copies,
`delivery` who takes entries and who failed, `ensemble_change` a compare-and-set under way,
`ack_round` the proof that nobody sealed the segment, `visible_tail` what readers were told. None
changes another: `ledger_writer` asks them and passes on what they say.
Source: docs/protocol/write.md, R5–R9, ADR 0001.
"""
