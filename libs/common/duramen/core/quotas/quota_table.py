"""The parties that a process has met, and what each of them uses: a bounded table.

The party that was used longest ago makes room, unless it has calls under way: so the table has as
many rows as it may, or one for each party with open calls where those are more.

Called by the runtime's door. Source: docs/protocol/limits.md "What a proxy knows of namespaces".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from duramen.core.quotas.quota_account import Quota, QuotaAccount

PARTY_COUNT_MAX: Final = 4_096

_LOOKED_AT_MAX: Final = 16
"""Of the oldest rows, in one go: those that are busy are as if they had just been used."""


class QuotaTable:
    """Accounts by name."""

    def __init__(self, most_count: int = PARTY_COUNT_MAX) -> None:
        self._most_count = most_count
        self._accounts: OrderedDict[Hashable, QuotaAccount] = OrderedDict()

    def find(self, name: Hashable, quota: Quota, now_us: int) -> QuotaAccount:
        """The account of a party whose limits are these now."""
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = QuotaAccount(quota, now_us)
            if len(self._accounts) > self._most_count:
                self._make_room()
            return account
        self._accounts.move_to_end(name)
        if account.quota is not quota and account.quota != quota:
            account.change(quota, now_us)
        return account

    def statistics(self) -> dict[str, int]:
        """Parties, and all of what they have under way."""
        accounts = self._accounts.values()
        return {
            "parties": len(accounts),
            "parties_max": self._most_count,
            "open_calls": sum(one.open_calls for one in accounts),
            "open_streams": sum(one.open_streams for one in accounts),
            "in_flight_bytes": sum(one.in_flight_bytes for one in accounts),
        }

    def _make_room(self) -> None:
        # Never as far as the row that was made just now.
        for _ in range(min(_LOOKED_AT_MAX, len(self._accounts) - 1)):
            name, oldest = next(iter(self._accounts.items()))
            if not oldest.open_calls:
                del self._accounts[name]
                if len(self._accounts) <= self._most_count:
                    return
            else:
                self._accounts.move_to_end(name)
