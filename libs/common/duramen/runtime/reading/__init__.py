"""What reads logs: the driver of `core.reading.reader`, its bookies, tails and positions."""
