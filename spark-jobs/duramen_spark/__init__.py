"""Jobs that move closed segments between bookies and cold stores; see docs/protocol/archive.md."""
