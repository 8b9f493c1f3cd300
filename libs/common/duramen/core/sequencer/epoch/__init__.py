"""The epoch that a log's sequencer has open, and how it ends."""
