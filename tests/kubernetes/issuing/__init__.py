"""Tests of the operator as the issuer of a cluster's certificates."""
