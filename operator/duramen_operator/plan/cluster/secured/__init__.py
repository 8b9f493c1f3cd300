"""What only a cluster with `security: on` has: keys in its pods, and the job that founds it."""
