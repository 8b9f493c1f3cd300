"""Nodes in ZooKeeper by their kind: bookies, segments, and the fields that all of them share."""
