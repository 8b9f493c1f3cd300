"""Hand-made histories for the checkers: bad ones for each invariant, and good ones."""
