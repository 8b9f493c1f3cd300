"""Removal of bookies: who goes, which step is next, and what is told of it.

Called by `plan.cluster`. Source: docs/kubernetes/removal.md.
"""
