"""A disk model that tells every state a power cut can leave; the storage engine judged in each."""
