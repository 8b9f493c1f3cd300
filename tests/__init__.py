"""Tests, cheapest layer first; `tests.bench` holds the benchmarks."""
