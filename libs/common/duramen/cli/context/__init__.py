"""Contexts: clusters that the command line knows by a name, and what it shows to them."""
