"""The commands about rights: grants, and access tokens."""
