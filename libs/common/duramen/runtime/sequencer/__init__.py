"""What owns logs: the driver of `core.sequencer`, its lanes to bookies, its link to ZooKeeper."""
