"""What reads logs: the driver of `core.reader`, the bookies as it sees them, tails, positions."""
