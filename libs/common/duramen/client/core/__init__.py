"""The embedded core library: a process owns logs and reads bookies by itself, without proxies.

`CoreClient` opens logs for strict write order and reads them by position: docs/sdk.md, ADR 0013.
What is not named here, or in `duramen.client`, is not public.
"""

from duramen.client.core.client import CoreClient
from duramen.client.core.owned_log import AppendTicket, NotOwner, OwnedLog
from duramen.client.core.read_log import ReadLog

__all__ = ["AppendTicket", "CoreClient", "NotOwner", "OwnedLog", "ReadLog"]
