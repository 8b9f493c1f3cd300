"""The archive of a simulated cluster: its cold files, who fills it, and what is judged of both
(A1)."""
