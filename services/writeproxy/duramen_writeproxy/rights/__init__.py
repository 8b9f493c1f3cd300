"""Grants and access tokens: calls that sequencers carry out in their caller's name."""
