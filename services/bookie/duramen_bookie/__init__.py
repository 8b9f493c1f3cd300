"""The bookie: a storage node that holds entries and seals."""
