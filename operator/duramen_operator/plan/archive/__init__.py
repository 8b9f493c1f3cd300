"""ArchivePolicies: who runs the archive job, when, and what became of it.

`manifests` makes objects, `runs` reads Jobs, `triggers` decides that a run is due, `waiting` says
which segments a policy is about, `plan` puts them together. Pure, as all of the plan.
"""
