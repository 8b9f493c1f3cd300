"""The writer of an open flexible epoch, by what its parts own.

`wave_writer` is their face: `waves` keeps the entries above LNG and who stored which, `release`
what nodes were told, `surplus` what further waves may cost, `epoch_nodes` whom the lists mean.
"""
