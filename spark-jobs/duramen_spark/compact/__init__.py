"""Compact: small files of a log become few that its segments share."""
