"""Exactly once: producers, conditions, the fencing token, and what proves a refusal.

`stamps` holds the values, `producer_table` what is acknowledged, `admission` the judgement of
appends and the answers that wait for a proof, `snapshots` when the state is written into the log,
`rebuild` how a new owner reads it back, `carried_state` what is known when an epoch begins.
Source: docs/protocol/write.md "Exactly once".
"""
