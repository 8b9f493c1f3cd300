"""A whole cluster on this machine: its layout, its processes, its supervisor."""
