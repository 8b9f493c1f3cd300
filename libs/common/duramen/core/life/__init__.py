"""What happens to records after they were written: truncation and retention, as pure decisions."""
