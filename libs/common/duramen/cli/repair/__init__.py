"""Commands about the copies of entries: where they are, and whether they are whole."""
