"""The auditor: one sequencer that finds missing copies, has them made, and drains bookies."""
