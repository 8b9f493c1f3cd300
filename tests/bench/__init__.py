"""The benchmarks: `make bench`. What each figure means is in docs/benchmarks.md."""
