"""Who reads a simulated cluster: read proxies on production drivers, and their clients."""
