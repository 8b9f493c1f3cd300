"""The cluster as one thing: questions that every sequencer answers for itself, put together."""
