"""Container images without a Docker daemon: what the Dockerfile makes, for tests."""
