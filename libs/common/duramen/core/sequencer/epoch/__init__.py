"""The epoch that a log's sequencer has open: what it asks of the segment's writer, how it ends."""
