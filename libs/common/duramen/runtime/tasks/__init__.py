"""Tasks of an event loop that several share, or that nobody waits for any more."""
