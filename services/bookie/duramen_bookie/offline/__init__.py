"""Tools for a bookie that does not run, and benches: `duramen-bookie fsck`, `inspect`, `bench`."""
