"""The write proxy: the stateless edge for appends and administration."""
