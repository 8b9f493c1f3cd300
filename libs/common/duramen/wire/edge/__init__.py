"""What the public ports spell beside records: content codings and the framed append session."""
