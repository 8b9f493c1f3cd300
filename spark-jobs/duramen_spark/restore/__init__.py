"""Restore: a log comes back out of the archive, under a new id."""
