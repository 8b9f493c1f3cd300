"""The searches behind a position: over segments, entries and records, through one small port.

`positions.Positions` decides what a position means and calls these. They neither hold connections
nor know the network, so that a log in memory can drive them.
"""
