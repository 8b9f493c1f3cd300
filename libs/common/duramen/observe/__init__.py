"""Metrics, statistics and the admin API that every process serves."""
