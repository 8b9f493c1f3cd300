"""Credentials of clients at public ports: API tokens, and JSON web tokens of listed issuers."""
