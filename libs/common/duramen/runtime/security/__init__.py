"""What a running process does with its identity: holds it, shows it to peers, asks for theirs."""
