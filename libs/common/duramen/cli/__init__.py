"""The `duramen` command: local clusters, namespaces, logs, append, read and administration."""
