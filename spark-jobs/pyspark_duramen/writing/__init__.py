"""Records into logs, each once."""
