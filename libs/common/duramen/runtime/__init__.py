"""What turns effects into I/O and I/O into events: asyncio, HTTP/2, ZooKeeper, files, timers."""
