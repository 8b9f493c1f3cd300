"""Metadata logs: segment nodes that never change any more, kept on bookies instead of ZooKeeper.

`record` is what stands in one.
"""
