"""Metadata logs: segment nodes that never change any more, kept on bookies instead of ZooKeeper.

`record` is what stands in one, `marks` what a log node says of it.
"""
