"""Tests with real processes, a real ZooKeeper and real fsync."""
