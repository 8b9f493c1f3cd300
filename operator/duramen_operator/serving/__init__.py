"""The running operator: watches that wake, a worker for each cluster, health and metrics.

`running.py` puts it together, `worker.py` is the loop of observe, plan and apply. Called by
`main.py`.
"""
