"""Duramen's operator: makes what custom resources ask for, and says what became of it.

Handlers only wake a worker per cluster; the worker observes, plans and applies, again and again
(ADR 0020). It is not in the way of appends and reads: a cluster runs on without it. `main.py` is
where to begin to read, `plan/` where decisions are made. Explained in docs/kubernetes/.
"""
