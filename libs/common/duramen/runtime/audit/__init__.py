"""What a proxy does for the audit log: calls recorded, records kept in a file, and sent on."""
