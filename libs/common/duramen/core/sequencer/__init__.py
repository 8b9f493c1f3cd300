"""Cores of the sequencer: from an append to acknowledged, recovered and closed segments."""
