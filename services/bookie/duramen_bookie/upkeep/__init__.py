"""What a bookie does on its own: settle, compact, delete, watch its space, scrub."""
