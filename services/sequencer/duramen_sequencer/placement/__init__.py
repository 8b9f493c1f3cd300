"""Placement at work: which bookies there are and where, regions, and what breaks the rule."""
