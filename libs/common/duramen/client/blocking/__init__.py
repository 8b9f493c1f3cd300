"""The SDK without `await`: the same names, over an event loop in a thread of its own."""
