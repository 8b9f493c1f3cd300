"""The formats of a bookie's disk: journal, checkpoint, entry log and their checks."""
