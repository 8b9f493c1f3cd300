"""Bytes to messages and back: versions, checksums, frames. No sockets and no decisions."""
