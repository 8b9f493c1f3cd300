"""What ought to exist: namespaces and logs, said one by one or in files."""
