"""Rights in a process: the verbs of its routes, and the grants of its cluster."""
