"""How appends come in: room for their bodies, and pipelined sessions."""
