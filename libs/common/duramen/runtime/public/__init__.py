"""The public REST contract, shared by both proxies: its calls, their document, their forwarding."""
