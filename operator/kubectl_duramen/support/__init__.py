"""The support bundle: what is gathered of a sick cluster, and what is taken out of it."""
