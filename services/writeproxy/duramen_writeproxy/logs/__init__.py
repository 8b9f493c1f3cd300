"""Logs as the write proxy knows them: names, creation, life cycle and fencing tokens."""
