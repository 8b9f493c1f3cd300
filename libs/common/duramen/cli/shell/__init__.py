"""How the command fits into a shell: completion, and what to do after a failure."""
