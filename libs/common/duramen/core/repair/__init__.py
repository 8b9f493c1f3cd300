"""Repair decided: what is missing where, what to do first, what may be stopped or taken away."""
