"""Real peers of other people's scripts, and this product beside them."""
