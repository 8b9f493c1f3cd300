"""Two revisions side by side: `make bench-compare BASE=<rev>`; docs/benchmarks.md explains it."""
