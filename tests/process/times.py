"""How long tests wait, and how long what is promised may take: one name for each, with its reason.

A hang bound ends a wait that would never end, says nothing about the product, and is generous. A
time that the product is held to has one bound here; it is measured without the machine's stalls
(`tests.ticker`) or in CPU, and is less than twice what is usual, so that a regression of 2 x fails.
Used by the tests with processes, those on Kubernetes and with Spark too.
Source: docs/testing.md, docs/protocol/ownership.md.
"""

from __future__ import annotations

from typing import Final

HANG_S: Final = 240.0
"""A hang bound: whatever is waited for has either come long before, on any machine, or never will.
It is no promise, and no test may read it as one. It is less than five minutes, after which a grant
is over and what was remembered is asked for anew: what came by that alone has not come."""

SILENCE_S: Final = 1.0
"""Without ZooKeeper appends go on as before: nobody waits for it, and there is an acknowledgement
in every second. Half a second was the longest seen, on a machine with ten times the work that it
can do."""

FROZEN_BOOKIE_S: Final = 2.5
"""The longest silence of a log while one of its bookies is frozen and as much is appended as the
budget of owed copies takes: 1.4 to 1.6 s in six runs, most on a quiet machine."""

STILL_S: Final = 1.0
"""A refusal is the machine's fault only if the control stood still for so long meanwhile."""

READY_WORK_COUNT: Final = 1_050
"""What the processes of a local cluster of the usual size compute until all are ready, in pieces of
work that an interpreter does beside them: neither seconds nor CPU, for a machine that is half as
fast takes twice of both. 622 (9.1 s of CPU) beside little work, 674 (10.3 s) on a shared core."""

FAILOVER_S: Final = 1.8
"""The longest silence of a log whose owner is killed: nobody listens at its port, and another one
takes the log over at once, without waiting for the session. 1.0 s was measured beside ten times a
machine's work, and 5.1 s where nobody tries the port."""

SESSION_FAILOVER_S: Final = 9.0
"""The same for an owner that is frozen: its session of four seconds ends, and half a second of the
server's tick with it; then its logs are recovered. 5.9 s were measured beside other work."""

HINT_FAILOVER_S: Final = 1.75
"""The same for an owner that is frozen among six sequencers: its neighbours find out, and the next
one takes its logs over before its session ends. By the rules it is pinged within two periods, and
confirmed 0.75 s later: 1.25 s at most, and the takeover comes to that. 0.9 to 1.57 s were measured,
most of them a second."""

SETTLED_S: Final = 16.0
"""Until every copy of a killed bookie is made anew, by a hurried auditor: its session, a grace of
two seconds and an audit's interval of one, then the copies. 10.7 s were measured beside other
work."""

SESSION_S: Final = 4.0
"""The session with ZooKeeper of a local cluster's processes (docs/protocol/ownership.md)."""
