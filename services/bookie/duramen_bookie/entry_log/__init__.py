"""Settled entries: ledger-sorted data files, their indexes, and the set of them in force."""
