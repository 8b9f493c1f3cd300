"""What may be evicted of a cluster, and when: budgets, and the gate that says "caught up"."""
