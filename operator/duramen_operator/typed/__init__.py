"""Calls of Kubernetes' own kinds by the official client: one function a call.

Their models name every field, so mypy finds a wrong one before an API server does. What has no
model (our own kinds), is applied as a manifest or is listed stays with `kube.py`: ADR 0026.
"""
