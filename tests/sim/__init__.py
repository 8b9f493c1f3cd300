"""The deterministic simulator: production cores, journal and metadata link in virtual time."""
