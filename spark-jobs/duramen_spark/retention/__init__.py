"""Retention: what of the archive may go, and making it go."""
