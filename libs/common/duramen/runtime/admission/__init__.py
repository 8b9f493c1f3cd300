"""Who is let in at the public ports of proxies: the caller is found, and its call judged."""
