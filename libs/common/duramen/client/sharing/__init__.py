"""Appends of a client that share a request: append sessions, and when they are used."""
