"""Text scenarios of the protocol: commands and expected output, interleaved (docs/scenarios.md)."""
