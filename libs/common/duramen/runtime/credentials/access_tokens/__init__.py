"""API tokens: their texts and scopes, the table of those that are there, and who makes them."""
