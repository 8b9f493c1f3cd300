"""Logs as streams: offsets, limits, lag."""
