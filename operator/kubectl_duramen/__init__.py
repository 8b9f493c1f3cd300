"""`kubectl duramen`: a cluster's state, a support bundle, append and read, through kubectl."""
