"""Which sequencers answer now, as their neighbours find and pass on: a hint, never evidence."""
