"""Metadata logs as whoever reads segments' metadata meets them: their records, and both places."""
