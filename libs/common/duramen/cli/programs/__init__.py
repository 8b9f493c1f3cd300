"""Commands that are programs of their own: the process becomes one of them."""
