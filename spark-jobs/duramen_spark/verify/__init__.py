"""Verify: cold copies against their manifests, and against what bookies hold."""
