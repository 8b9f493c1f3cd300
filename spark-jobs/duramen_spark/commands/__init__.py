"""Commands of `duramen-spark` besides `archive`: each resolves its flags, runs, and reports."""
