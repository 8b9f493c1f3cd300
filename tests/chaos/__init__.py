"""Real processes, real faults, and a judge that believes nothing but the histories."""
