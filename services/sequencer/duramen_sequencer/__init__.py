"""The sequencer: orders the appends of the logs it owns and replicates them to bookies."""
