"""The plan's part for a cluster and its bookies: ZooKeeper, StatefulSets, Deployments, statuses.

`plan.py` of this folder is where to begin; the modules beside it make the manifests of one
component each, and `status.py` says what became of it.
"""
