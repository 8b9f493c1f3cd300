"""A whole cluster on this machine, and what its processes need where others supervise them."""
