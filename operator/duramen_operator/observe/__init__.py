"""Looks at the world for a plan: lists objects of the API server, asks the cluster's admin API.

Gives an `Observed` (`plan/observed.py`) and changes nothing. Called by the worker.
"""
