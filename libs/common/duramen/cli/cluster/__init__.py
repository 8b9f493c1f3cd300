"""Commands that ask or change the cluster: bookies, placement, owners, repair, verification."""
