"""kubectl-duramen: what it takes out, what it shows, and how it fails."""
