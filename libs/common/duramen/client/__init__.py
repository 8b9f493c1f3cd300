"""The SDK that applications use to append to logs and to read them."""
