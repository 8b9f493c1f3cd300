"""Readers that go on: the feed that those at a log's tail share, and the streams that they get."""
