"""Grants of disruption: what is asked, judged, granted and kept, for the auditor.

Called by the auditor and its operations. Source: docs/protocol/disruption.md.
"""
