"""The asynchronous SDK; applications import its public names from `duramen.client`."""
