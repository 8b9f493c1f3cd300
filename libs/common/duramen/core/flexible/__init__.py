"""Flexible copysets: where the copies of each entry lie is chosen entry by entry (R22–R30).

`property` is what the places of a copyset must span and what covers every set of them. `nodeset`
chooses the bookies that an epoch may use, `soundness` says what they lack, `alternatives` what
would work instead, and `reopening` why an epoch should have others. `shares` is how often each of
them is in a copyset, `selector` the copyset of each wave. `segment` is what a segment's node says
of all that, and `segment_changes` what it may become.
"""
