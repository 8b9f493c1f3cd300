"""What the REST interface offers to end records and logs: truncate, end, delete, undelete."""
