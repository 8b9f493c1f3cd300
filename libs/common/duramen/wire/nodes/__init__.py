"""Nodes in ZooKeeper by their kind: bookies, segments, and the fields that all of them share.

Records of metadata logs hold segments' nodes, and are here too.
"""
