"""Standing streams as they are spelt: messages, and the part of HTTP/2 that carries them."""
