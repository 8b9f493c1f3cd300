"""The protocol as plain classes: events in, effects out; no I/O, clock, randomness or logging."""
