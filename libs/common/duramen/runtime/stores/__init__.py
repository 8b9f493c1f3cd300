"""Metadata stores: their port, ZooKeeper behind it, and one in memory that keeps its contract."""
