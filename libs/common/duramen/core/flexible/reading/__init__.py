"""Reading of flexible segments: who sends what, what came, and what nobody sent."""
