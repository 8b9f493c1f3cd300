"""Faults outside the cores: single lines that a programmer gets wrong, and that a test must notice.

`tests.sim.mutants` breaks rules of the protocol and asks the simulator; these break what stands
around it, services and runtime, and ask the test files that are to notice. `faults/*.toml` hold
them by area: the file, a text that is there once, the text in its place, what a user would suffer.
They were chosen before anybody looked at which tests there are. docs/testing.md tells more.
"""
