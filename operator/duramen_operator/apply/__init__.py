"""Does what a plan says, one step after the other, each with its preconditions.

Gives back what was refused and decides nothing. Called by the worker.
"""
