"""Repair of flexible segments, carried out: calls, attempts, and the changes that they allow."""
