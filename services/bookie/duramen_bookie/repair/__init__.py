"""Copies of entries: what is held is told, what is missing is fetched from other bookies."""
