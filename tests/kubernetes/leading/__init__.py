"""Which of several operators may write: the clock, the claim, and keepers beside one another."""
