"""Metadata logs: segment nodes that never change any more, kept on bookies instead of ZooKeeper.

`record` is what stands in one, `marks` what a log node says of it. `listing` decides which records
count, `lookup` reads the metadata of one epoch or of all from both places. `moving` plans what
leaves ZooKeeper and what a metadata log is rewritten to, `keeper` carries it out. `configuring`
is how its entries are kept, `rebuilding` what is left when ZooKeeper has lost nodes.
"""
