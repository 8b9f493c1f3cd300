"""What a client shows of itself, and to whom: tokens, certificates, and what it trusts."""
