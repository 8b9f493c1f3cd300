"""Components on real sockets, disks and a real ZooKeeper."""
