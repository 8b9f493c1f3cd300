"""Gossip over the data ports: members (sequencers) and observers (write proxies)."""
