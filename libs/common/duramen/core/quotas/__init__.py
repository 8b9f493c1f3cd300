"""How much of a proxy one party may have: rates and what is under way, with injected time.

Called by the runtime's door. Source: docs/protocol/limits.md "How it is counted".
"""
