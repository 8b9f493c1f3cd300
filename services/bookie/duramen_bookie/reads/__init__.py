"""Reads as the data plane carries them out: what lies where, whose it is to send, and its bytes.

`read_jobs` is one admitted read, on the event loop or on a thread of its class. `range_reads`
answers ranges of flexible segments, from `held_entries`, which knows what is here with its
envelopes, and `entry_bodies`, which reads what is to be sent.
"""
