"""Bounded exhaustive exploration of small worlds: see docs/explorer.md."""
