"""Who is let in at a public port, and how a call finds out."""
