"""The SDK that applications use to append to logs and to read them: docs/sdk.md.

`Client` for asyncio, `SyncClient` with the same names for everybody else. What is not named here
is not public: the command line and the services use other modules of this package.
"""

from duramen.client.blocking.client import SyncClient, SyncLog, SyncNamespace
from duramen.client.blocking.producer import SyncBulkTicket, SyncProducer, SyncTicket
from duramen.client.partitioned.blocking import SyncPartitionedLog, SyncPartitionedProducer
from duramen.client.partitioned.log import PartitionedLog
from duramen.client.partitioned.producer import PartitionedProducer
from duramen.client.partitioned.reader import PartitionBatch
from duramen.client.rest_client import Appended
from duramen.client.retry import Repeat, RetryPolicy
from duramen.client.sdk.client import Client
from duramen.client.sdk.faults import Uncertain, Unreachable
from duramen.client.sdk.log import Log, Namespace
from duramen.client.sdk.producer import BulkTicket, Producer, Ticket
from duramen.client.sdk.read_batch import ReadBatch, ReadRecord
from duramen.client.sdk.values import Lost, Mark, Moved, Receipt, Record
from duramen.client.settings import LogSettings
from duramen.errors import DuramenError

__all__ = [
    "Appended",
    "BulkTicket",
    "Client",
    "DuramenError",
    "Log",
    "LogSettings",
    "Lost",
    "Mark",
    "Moved",
    "Namespace",
    "PartitionBatch",
    "PartitionedLog",
    "PartitionedProducer",
    "Producer",
    "ReadBatch",
    "ReadRecord",
    "Receipt",
    "Record",
    "Repeat",
    "RetryPolicy",
    "SyncBulkTicket",
    "SyncClient",
    "SyncLog",
    "SyncNamespace",
    "SyncPartitionedLog",
    "SyncPartitionedProducer",
    "SyncProducer",
    "SyncTicket",
    "Ticket",
    "Uncertain",
    "Unreachable",
]
