"""Checks of the house style that a machine can make."""
