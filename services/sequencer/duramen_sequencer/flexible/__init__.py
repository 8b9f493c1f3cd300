"""Configurations of flexible logs at a sequencer: refused, explained, and made ready for."""
