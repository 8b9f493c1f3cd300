"""Decisions of readers beside the reader itself: what a feed keeps, how far to read ahead."""
