"""Who may do what: verbs, roles, grants, and the judgement of a call."""
