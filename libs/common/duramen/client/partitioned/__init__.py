"""The SDK's partitioned log: several logs as one, with an order for each partition."""
