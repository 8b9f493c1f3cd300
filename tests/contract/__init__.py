"""Contracts of ports: the same tests on the twin and on the real thing."""
