"""`make night HOURS=n`: what the gate has no time for, other seeds each time, in one report."""
