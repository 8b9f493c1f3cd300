"""What is to be done, decided from what was observed: functions without I/O, clock or memory.

`observed.py` is what they take, `steps.py` what they give, `plan.py` puts the parts together.
Called by the worker and by tests; the import contracts keep it pure.
"""
