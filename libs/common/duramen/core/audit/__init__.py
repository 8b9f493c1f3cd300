"""The audit log's decisions: chains of records, what a check of them finds, and what is counted."""
