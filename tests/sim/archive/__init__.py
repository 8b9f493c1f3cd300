"""The archive of a simulated cluster: its shelf, who fills it, and what is judged of both (A1)."""
