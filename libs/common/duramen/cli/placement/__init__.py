"""`duramen bookies`, `regions` and `placement`: where data lie, and where new ones may."""
