"""Standing streams: small frames of one process to another over one connection that stays.

Source: docs/protocol/standing-streams.md, ADR 0048.
"""
