"""Every default limit and time-out of the product, in one place, with its reason.

A value that an operator may want to change is also a configuration field somewhere; this is where
its default lives. Bytes end in `_BYTES`, durations are microseconds and end in `_US`.

Called by everybody. Source: docs/protocol/wire.md "Limits", docs/protocol/configuration.md.
"""

from __future__ import annotations

from typing import Final

from duramen.backoff import Backoff
from duramen.units import DAY, HOUR, KIB, MIB, MINUTE, MS, SECOND

RECORD_BYTES_MAX: Final = 1 * MIB
"""One record's body with its headers: a log carries events, not files."""

BATCH_BYTES_MAX: Final = 4 * MIB
"""One record batch: what a slow client may make every hop hold at once."""

BATCH_RECORD_COUNT_MAX: Final = 10_000
"""Records of one batch: bounds the per-record work of one call at an edge."""

FRAME_BYTES_MAX: Final = 16 * MIB
"""One data-plane request or answer body, checked before it is allocated."""

ENTRY_BYTES_MAX: Final = BATCH_BYTES_MAX + 512 * KIB
"""One entry: a batch of the largest legal records with every column (24 bytes a record) fits."""

ENTRY_TARGET_BYTES: Final = 1 * MIB
"""Batches that wait are packed up to this: past it the bytes per call no longer gain anything."""

STORE_TIMEOUT_US: Final = 2 * SECOND
"""An add that a bookie has not answered by then counts as a failed member."""

READ_TIMEOUT_US: Final = 5 * SECOND
"""A read (beyond its long poll) that is not answered by then is tried elsewhere."""

COLD_READ_TIMEOUT_US: Final = 20 * SECOND
"""A read of the cold store, row groups of 16 MiB from elsewhere: nobody else can be asked."""

SEAL_TIMEOUT_US: Final = 5 * SECOND
"""A seal that is not answered by then is asked again."""

SEAL_LEAD_EPOCH_COUNT_MAX: Final = 1_000
"""How far above the epochs that metadata has shown a bookie of a log it is sealed without a look at
the log's node: nobody passes so many by owning it, and a seal is never taken back."""

SEAL_PROOF_TIMEOUT_US: Final = 2 * SECOND
"""A look at a log's node for a seal has failed if it is not over by then; the seal is repeated."""

CLOSE_OWED_WAIT_US: Final = 2 * SECOND
"""A roll waits this long at most for copies that are still owed (R9)."""

ROLL_DRAIN_US: Final = 2 * SECOND
"""A roll whose window does not drain by then is called off and tried later (R19)."""

APPEND_TIMEOUT_US: Final = 10 * SECOND
"""An append that is not acknowledged by then is answered: uncertain if it was ever sent."""

APPEND_TIMEOUT_MAX_US: Final = 60 * SECOND
"""The most that a client may ask for instead (`Duramen-Timeout`)."""

PROBE_INTERVAL_US: Final = 500 * MS
"""How often a suspended member is tried again with the oldest entry that it is owed."""

SHORTAGE_GRACE_US: Final = 3 * SECOND
"""Too few bookies for a log are waited for so long, six probes: a process that restarts at once is
back by then, and a roll that met them is called off. Whoever appends is told after it, whatever
time is left."""

RETRY_DELAY_US: Final = 200 * MS
"""First pause before a metadata or recovery step is tried again."""

RETRY_DELAY_MAX_US: Final = 2 * SECOND
"""Longest pause between two tries of the same step."""

RETRY_BACKOFF: Final = Backoff(RETRY_DELAY_US, RETRY_DELAY_MAX_US)
"""From the one to the other."""

TAKEOVER_LOOK_US: Final = 4 * SECOND
"""How often a sequencer that recovers, rebuilds or lacks an ack set reads its log's nodes again:
longer than a healthy takeover lasts, and short enough to leave another owner a part of an append's
time."""

OWED_BYTES_MAX_PER_LOG: Final = 64 * MIB
"""Entries that one log keeps in memory for members that missed them (R9)."""

OWED_BYTES_MAX_PER_SEQUENCER: Final = 512 * MIB
"""What all logs of a process keep in memory together: from half of it on every log records what it
owes, beyond it logs that owe something take no appends."""

LONG_POLL_MAX_US: Final = 60 * SECOND
"""The longest `wait` of a read: below the idle time-outs of common load balancers."""

READ_BYTES_DEFAULT: Final = 1 * MIB
"""Bytes of one read answer when the reader names no bound."""

READ_BYTES_MAX: Final = 16 * MIB
"""The most that one read answer may carry."""

READ_ROW_COUNT_MAX: Final = 4_096
"""Ranges of one read: the event loop plans them in some 50 ms."""

FILTERED_ENTRY_COUNT_MAX: Final = 65_536
FILTERED_RANGE_COUNT_MAX: Final = 4_096
"""What one range of a read of version 2 meets and tells: entries; and runs of one envelope, and
ranges that the bookie cannot vouch for."""

MAP_NODE_COUNT_MAX: Final = 256
FILTER_BLOCK_COUNT_MAX: Final = 64
"""Nodes of a segment, which a filter or a pull may name; and sticky blocks of one filter, some
gigabytes ahead of its reader."""

READ_QUEUE_WAIT_MAX_US: Final = 2 * SECOND
"""A read that waited so long for a thread is refused: whoever asked, asks elsewhere by then."""

JOURNAL_QUEUE_BYTES_MAX: Final = 112 * MIB
"""Adds that may wait for the journal of one bookie: what its classes of service may hold at most,
64 MiB of appends and 24 MiB each of recovery and repair."""

BODY_SMALL_BYTES: Final = 64 * KIB
"""A request body up to this never waits for room: seals, reads and LACs pass full frames."""

BODIES_BYTES_MAX: Final = 256 * MIB
"""Larger bodies that one data server takes in at once: a dozen of the largest; the rest wait."""

BODIES_WAITING_COUNT_MAX: Final = 1_024
"""Larger bodies that may wait for room; one more is refused before it is read."""

BODY_TIMEOUT_US: Final = 30 * SECOND
"""A body that has not arrived by then is given up: it would hold room for nothing."""

CONNECTION_COUNT_MAX: Final = 8_192
PUBLIC_CONNECTION_COUNT_MAX: Final = 16_384
"""Connections that one data or public server reads from, unless the process may open fewer than
twice as many files; one more waits in the kernel until one closes. An idle one of HTTP/2 takes 13
KiB, so that all of them take 104 and 208 MiB. Each may make the HTTP library hold a connection
window (64 MiB)."""

KEEP_ALIVE_INTERVAL_US: Final = 20 * SECOND
KEEP_ALIVE_TIMEOUT_US: Final = 10 * SECOND
"""A peer of HTTP/2 that is silent for so long is asked for a sign of life, and has so long for it:
who is gone, or never meant to speak, gives its place to another."""

OPEN_FILE_COUNT_MAX: Final = 65_536
"""What a service asks the system for, as far as it is let: many systems begin with 1,024."""

ADMIN_CONNECTION_COUNT_PER_PEER: Final = 256
"""Connections of one address to an admin port: people, probes and one Prometheus are behind it."""

ADMIN_REQUEST_TIMEOUT_US: Final = 30 * SECOND
"""The head of a request to an admin port arrives within so much, and then its body, too."""

OVERLOADED_PAUSE_US: Final = 100 * MS
"""Pause before a row that was refused as overloaded is sent again: a full journal queue is written
in that time."""

JOURNAL_FILE_BYTES: Final = 256 * MIB
"""Size that a journal file is preallocated with."""

JOURNAL_FILE_BYTES_MIN: Final = 1 * MIB
JOURNAL_FILE_BYTES_MAX: Final = 4096 * MIB
"""What an operator may choose instead: a disk should hold ten of them and more."""

LOCAL_JOURNAL_FIRST_FILE_BYTES: Final = 8 * MIB
"""What the first journal file of a bookie of `duramen run` takes: three bookies on a laptop have 24
MiB of them before the first record, and files of the usual size after 248 MiB each."""

PRODUCER_COUNT_MAX: Final = 10_000
"""Idempotent producers that a log keeps in mind (some 100 bytes a result): beyond it the one that
has rested longest is forgotten, or a new one must wait."""

PRODUCER_REST_US: Final = 10 * MINUTE
"""A producer heard so recently may still repeat a batch: it is never forgotten for room."""

SNAPSHOT_ENTRY_COUNT: Final = 4_000
SNAPSHOT_BYTES: Final = 64 * MIB
"""Producers and token are written into the log again after so many entries or bytes: what a
takeover reads at most, in a second or so."""

SNAPSHOT_PART_BYTES: Final = 1 * MIB
"""A snapshot is cut into control records of about this size: they share the log with appends."""

FENCING_TOKEN_BYTES_MAX: Final = 64
"""A fencing token names a holder; it is no place for data."""

SEQ_NUM_MAX: Final = (1 << 53) - 1
"""Sequence numbers stay exact in every JSON reader (documented limit)."""

ZOOKEEPER_SESSION_S: Final = 4.0
"""Session time-out of every service: how long a dead owner keeps its logs."""

METADATA_AGE_MAX_US: Final = 5 * MINUTE
"""How old metadata may be that are read from while ZooKeeper cannot be: so long what was truncated
or deleted meanwhile is still shown (ADR 0021). Longer than ZooKeeper takes to be restarted."""

GRANTS_AGE_MAX_US: Final = 1 * HOUR
"""How old grants may be that calls are judged by while ZooKeeper cannot be reached. Longer than
METADATA_AGE_MAX_US: appends to open segments go on meanwhile, and would end with it. Access tokens
may be as old."""

DISK_WARN_RATIO: Final = 0.90
"""Used part of a disk at which a person should act; also the lower mark of read-only."""

DISK_READ_ONLY_RATIO: Final = 0.95
"""Used part at which adds are refused: the rest is for seals, recovery and compaction."""

DISK_FULL_RATIO: Final = 0.98
"""Used part at which recovery's adds are refused too: what is left is for seals alone."""

DISK_CHECK_INTERVAL_US: Final = 1 * SECOND
"""How often disks are looked at: from 95 % to 98 % of 100 GB a fast disk writes for two seconds."""

AUDIT_INTERVAL_US: Final = 1 * MINUTE
"""Rest between two audits of all metadata; what is urgent (a bookie lost, a drain) starts one."""

AUDIT_REST_MIN_US: Final = 1 * SECOND
"""Between two audits however many events come: those of a second are seen together."""

AUDIT_CONCURRENCY: Final = 8
"""Logs of one audit that are read at once: the metadata store is there for writers first."""

LOST_BOOKIE_GRACE_US: Final = 30 * SECOND
"""A bookie that is away for longer counts as lost: a restart takes seconds. Where machines are
rebooted it is minutes, because copying a disk costs more than waiting for it."""

GIVE_UP_AFTER_US: Final = 10 * SECOND
"""A log that stands still so long for want of bookies goes to a sequencer that reaches them: longer
than a bookie takes to start anew, and as long as an append waits by default."""

STEADY_AFTER_US: Final = 30 * SECOND
"""A bookie that came back gets new data after it has stayed so long, where others suffice: longer
than the pauses between restarts of a process that dies again and again (5 s at `duramen run`, some
10 to 20 s of Kubernetes' first ones), short against what a bookie is away for maintenance."""

REPAIR_TASKS_RUNNING: Final = 8
REPAIR_TASKS_PER_TARGET: Final = 2
"""Repairs at once, over all and to one bookie, whose rate of copying is bounded by itself: two,
because one of them is comparing while the other copies."""

REPAIR_TASK_COUNT_MAX: Final = 10_000
"""Fragments that wait to be repaired (a kilobyte each); more are found again by the next audit."""

DOUBT_FRAGMENT_COUNT_MAX: Final = 50_000
"""Compared fragments of doubtful bookies that an auditor remembers one by one (some 200 bytes
each); of more it remembers up to which ledger, and compares twice what it had to skip there."""

REPAIR_PIECE_ENTRY_COUNT: Final = 8_192
"""Entries of a fragment that are compared in one go: some 2 MB of memory a repair."""

REPAIR_CALL_TIMEOUT_US: Final = 30 * SECOND
"""An inventory or a pull that is not answered by then failed: a pull ends after 5 s by itself, and
may have waited for its bookie's rate limit before."""

REPAIR_BACKOFF: Final = Backoff(1 * SECOND, 1 * MINUTE)
"""Pauses before a repair that failed is tried again."""

UNDELETE_WINDOW_US: Final = 1 * HOUR
"""How long a deleted log can be had back: a mistake is noticed within minutes, and whoever deletes
to free space does not wait for a day."""

METADATA_REST_US: Final = 2 * DAY
"""A released segment's node stays in ZooKeeper for so long after the second look at its cold copy:
compaction, a day apart, may replace the copy meanwhile, and no more once the node has left."""

RETENTION_INTERVAL_US: Final = 1 * MINUTE
"""Rest between two rounds of retention (± 20 %): a record lives hours, a minute more is nothing."""

RETENTION_CONCURRENCY: Final = 8
"""Logs of one round that are looked at at once: the metadata store is there for writers first."""

RELEASE_SEGMENT_COUNT_MAX: Final = 500
"""Segments of which one change releases the hot copies: it checks the version of each node, some 60
bytes of a request of at most 1 MiB."""

RETENTION_SEGMENT_COUNT_MAX: Final = 5_000
"""Segment nodes of one log that one round reads: a year of two-hourly rolls; the rest is judged
when the oldest are gone."""

DELETION_INTERVAL_US: Final = 1 * MINUTE
"""Rest between two rounds of deletion: space comes back minutes after the trim, not seconds."""

DELETION_DELAY_US: Final = 1 * MINUTE
"""Between the proof that a ledger is dead and its drop: what was being read can be read to its end
(a long poll lasts that long at most), and the proof is read a second time."""

DELETION_READ_COUNT_MAX: Final = 1_000
"""Nodes that one round of deletion reads: with a round a minute, 17 reads a second and bookie."""

DELETION_CONCURRENCY: Final = 8
"""Reads of one round that are under way at once: the metadata store is there for writers first."""

SCRUB_BYTES_PER_S: Final = 8 * MIB
"""Every byte of a 1 TB disk once in 35 hours, for some percent of what a hard disk reads."""

SCRUB_REST_US: Final = 1 * DAY
"""From the end of a scrub to the next one: small disks are read daily, large ones all the time."""

REPAIR_QUEUE_COUNT_MAX: Final = 10_000
"""Damaged ledgers that wait in memory to be written to the repair queue (some 100 bytes each)."""

REPAIR_BYTES_PER_S: Final = 32 * MIB
"""What one bookie copies from others, at most: a lost one of 1 TB is copied anew by nine others in
an hour, and writers have the rest of the disk and of the network."""

REPAIR_PIECE_BYTES: Final = 1 * MIB
"""What repair reads, sends or adds at once (an entry at the least). A client's add that comes right
behind waits for one piece: a thousandth of a second of a disk, and of a core for the checksums."""

REPAIR_BYTES_PER_S_MIN: Final = 2 * MIB
REPAIR_BYTES_PER_S_FIRST: Final = 4 * MIB
REPAIR_BYTES_PER_S_RISE: Final = 1 * MIB
"""While clients are disturbed by it, repair copies so little; it begins with so much, and copies so
much more with each second that nobody is: half a minute to the whole rate. The least still moves a
disk of 1 TB to nine others within a day."""

INVENTORY_ROW_COUNT_MAX: Final = 65_536
INVENTORY_BYTES_MAX: Final = 64 * MIB
"""Entries that one inventory tells, and bytes that it reads for that: two seconds of a disk."""

INVENTORY_TIME_US: Final = 5 * SECOND
"""One inventory ends after so much, and tells how far it came: it may have to yield to clients."""

PULL_BYTES_MAX: Final = 64 * MIB
PULL_TIME_US: Final = 5 * SECOND
"""One pull ends after so much, so that whoever asked sees progress and can change its mind."""

PULL_RANGE_COUNT_MAX: Final = 4_096
PULL_SOURCE_COUNT_MAX: Final = 64
"""Ranges and sources of one pull; an ensemble is smaller."""

ENTRY_LOG_FILE_BYTES: Final = 512 * MIB
"""An entry log file is ended beyond this: small enough to be compacted in one go, large enough that
its directory of ledgers is little."""

SETTLE_FILE_COUNT: Final = 2
"""Sealed journal files that are settled together: more copies less of what dies young, and keeps
more of the journal's disk."""

SETTLE_BYTES_PER_S: Final = 256 * MIB
"""Settling must be faster than what comes in, or the journal grows without end; it is what a fast
disk writes beside its journal."""

SETTLE_BYTES_PER_S_FIRST: Final = 64 * MIB
"""What settling does while no more files are sealed than it waits for, and twice as much with each
further one. A thread that copies as fast as it can keeps the interpreter from everything else: adds
that take 2 ms for 9 of 10 take 30 ms beside it, and still 2 ms beside so much."""

COMPACT_BYTES_PER_S: Final = 32 * MIB
"""Compaction has time: space is short days after it was freed at the earliest."""

COMPACT_HOURLY_RATIO: Final = 0.2
COMPACT_DAILY_RATIO: Final = 0.8
"""Files with at most so much alive are rewritten, hourly and daily."""

COLD_STORE_TIMEOUT_US: Final = 20 * SECOND
"""A request to a cold store ends after so much at the latest, repetitions included: an object store
answers a busy client in seconds, and a client of the read proxy waits for it."""
