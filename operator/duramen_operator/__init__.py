"""The Kubernetes operator: makes what custom resources say, and tells in them what became of it."""
