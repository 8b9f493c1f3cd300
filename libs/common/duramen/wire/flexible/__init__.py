"""Calls to bookies that only flexible segments need: reads of version 2."""
