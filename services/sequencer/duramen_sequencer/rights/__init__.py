"""Grants and access tokens: what clients ask a sequencer to change about rights."""
