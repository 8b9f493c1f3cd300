"""Exactly once at the edge: conditions and producers of requests, and the fencing token."""
