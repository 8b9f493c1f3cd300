"""Commands that write a wish into an object, and the one that says what an object waits for.

They change nothing but a field or an annotation: what follows is the operator's. Called by `main`.
Source: docs/kubernetes/kubectl.md.
"""
