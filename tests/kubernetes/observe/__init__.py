"""Tests of what the operator asks of a cluster, how often, and what it makes of it."""
