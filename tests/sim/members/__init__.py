"""Gossip in the simulator: the production members, what goes wrong among them, what is right."""
