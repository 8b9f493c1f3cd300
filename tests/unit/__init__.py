"""Pure code: cores and formats, without I/O."""
