"""What a log's owner does about the unclosed epochs below its own."""
