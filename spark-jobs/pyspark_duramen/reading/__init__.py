"""Records out of logs: what is planned, and what a task does."""
