"""Whose a log is, what this process does about it, and what is remembered of that."""
