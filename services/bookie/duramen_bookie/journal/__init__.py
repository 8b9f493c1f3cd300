"""The bookie's journal: writing, group commit, replay, recycling. Import from the modules."""
