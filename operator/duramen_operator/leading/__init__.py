"""One hand: which of several operators of a namespace may write, and how it comes to know.

`claim` decides by the Lease's record, `hand` says whether time is left, `keeper` asks and renews.
Explained in ADR 0041.
"""
