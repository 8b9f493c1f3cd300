"""Repair of flexible segments decided: what is asked, copied and concluded in one attempt (R26).

`attempt` goes through a segment step by step, `evidence` says which changes it allows.
"""
