"""Security turned on while a cluster runs: two ports of each kind, and refusals only counted."""
