"""A throw-away Kubernetes of real components, without Docker and without a registry."""
