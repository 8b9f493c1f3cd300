"""Repair in the simulator: the processes' parts in it, what goes wrong, what is right."""
