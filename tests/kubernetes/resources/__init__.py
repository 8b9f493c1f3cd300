"""The custom resources: their definitions, and what a real API server makes of them."""
