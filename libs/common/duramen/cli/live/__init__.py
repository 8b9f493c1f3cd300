"""What the cluster is doing now: a view that refreshes, and tables to ask in SQL."""
