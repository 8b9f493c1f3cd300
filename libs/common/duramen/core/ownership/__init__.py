"""Who owns a log, when it changes hands, and in which order: decisions without I/O."""
