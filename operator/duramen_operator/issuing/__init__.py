"""The operator as the issuer of a cluster's certificates: a CA in a Secret, and what it fills."""
