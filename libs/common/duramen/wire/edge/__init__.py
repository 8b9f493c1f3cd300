"""What the public ports encode beside records: content codings and the framed append session."""
