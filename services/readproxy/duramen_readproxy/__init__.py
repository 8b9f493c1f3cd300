"""The read proxy: the stateless edge for reads, with a cache, read-ahead and long polls."""
