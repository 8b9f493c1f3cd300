"""The client: one url, a session, and the namespaces in it.

    async with Client("http://localhost:7301") as c:
        log = c["shop"]["orders"]
        await log.append(b"one")

Either proxy answers every public call, by sending on what is the other's; who gives the urls of
both ("http://w:7301,http://r:7401" or `read_url`) saves that hop.
Source: docs/sdk.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

from duramen.client.credentials.credential import NOTHING_SHOWN, Credential, make_credential
from duramen.client.credentials.local_cluster import find_credential_of
from duramen.client.partitioned.log import PartitionedLog
from duramen.client.retry import RetryPolicy
from duramen.client.sdk.log import Log, Namespace
from duramen.client.sdk.session import Session
from duramen.errors import DuramenError
from duramen.texts import parse_log


class Client:
    """Talks to a Duramen cluster through its proxies; one for a process is enough.

    Common errors, which every call may raise beside its own:

    - `Unreachable`, `overloaded`, `log_unavailable`, `metadata_unavailable`, `server_draining`: the
      call was not served within the time of the policy. A retry is safe. An append has not
      happened; another change may have taken effect by an earlier try.
    - `internal`: a server made a mistake; the SDK does not repeat the call. A retry is safe for
      reads and for changes that may be done twice.
    - `invalid_argument`, `unknown_field`, `misdirected`, `unauthenticated`, `forbidden`: a retry is
      refused again, until another token or right is there.

    A change that may be done twice is not `Uncertain` for want of an answer. What must not be done
    twice is, and so is an `internal` of which the server says that the call may have taken effect.
    """

    def __init__(
        self,
        url: str,
        *,
        read_url: str | None = None,
        timeout: float = 30.0,
        retry: RetryPolicy | None = None,
        http2: bool = True,
        follow_owner: bool = False,
        token: str | None = None,
        token_file: str | Path | None = None,
        ca: str | Path | None = None,
    ) -> None:
        """Make a client; it connects with the first call.

        Args:
            url: of a proxy, or of write and read proxy with a comma between.
            read_url: of the read proxy, where `url` is the write proxy's; None: as `url`.
            timeout: seconds that one try waits for its answer, above 0; a long poll's wait comes on
                top.
            retry: which calls are repeated, and for how long; None: `RetryPolicy()`.
            http2: one HTTP/2 connection to each proxy. False: HTTP/1.1, for an ingress that speaks
                nothing else; producers then have one batch on its way at a time.
            follow_owner: append through a proxy in the region of the log's owner, where that is
                another one than the region of `url`. The proxies there have to be reached from here
                by the addresses that they are registered with.
            token: an API token or a web token, shown to proxies over https, or on this machine.
            token_file: the file that has it, read anew when it changed and after a refusal.
            ca: file of the certificates that alone are trusted, over https; None: the system's.

        Raises:
            DuramenError: `invalid_argument`: no http:// or https:// url, `token` beside
                `token_file`, or a token that would travel in plain text; `unauthenticated`: `ca`
                cannot be read. A retry fails again.

        Example:
            async with Client("http://localhost:7301") as client:
                await client["shop"].ensure()
        """
        write_url, read_url = _split_urls(url, read_url)
        self._session = Session(
            write_url,
            read_url,
            policy=retry or RetryPolicy(),
            timeout_s=timeout,
            has_http2=http2,
            follows_owner=follow_owner,
            credential=_find_credential((write_url, read_url), token, token_file, ca),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; producers and readers are to be closed before.

        Raises:
            Nothing.

        Example:
            client = Client("http://localhost:7301")
            await client.close()
        """
        await self._session.close()

    def __getitem__(self, namespace: str) -> Namespace:
        """The namespace of this name; asks nobody.

        Args:
            namespace: 1 to 63 of `a-z`, `0-9` and `-`; begins and ends with a letter or digit.

        Returns:
            A `Namespace`, whether the cluster has it or not.

        Raises:
            DuramenError: `invalid_name`; a retry fails again.

        Example:
            log = client["shop"]["orders"]
        """
        return Namespace(self._session, namespace)

    def log(self, name: str) -> Log:
        """The log of `namespace/log`; asks nobody.

        Args:
            name: names of namespace and log with a slash between.

        Returns:
            A `Log`, whether the cluster has it or not.

        Raises:
            DuramenError: `invalid_name`; a retry fails again.

        Example:
            log = client.log("shop/orders")
        """
        return Log(self._session, *parse_log(name))

    def partitioned_log(self, name: str, *, partitions: int) -> PartitionedLog:
        """A log of several partitions, each with an order of its own; asks nobody.

        Args:
            name: names of namespace and partitioned log with a slash between.
            partitions: how many there are, 1 to 1,000; for ever the same.

        Returns:
            A `PartitionedLog`, whether the cluster has it or not.

        Raises:
            DuramenError: `invalid_name`, `invalid_argument`; a retry fails again.

        Example:
            clicks = client.partitioned_log("shop/clicks", partitions=4)
            await clicks.ensure()
        """
        namespace, log = parse_log(name)
        return PartitionedLog(self[namespace], log, partitions)

    async def namespaces(self, *, prefix: str = "") -> AsyncIterator[Namespace]:
        """List the namespaces in the order of their names, page by page.

        Args:
            prefix: of the names; "": all namespaces.

        Yields:
            A `Namespace` each.

        Raises:
            DuramenError: the common errors of `Client`; a retry is safe.

        Example:
            async for namespace in client.namespaces(prefix="sh"):
                print(namespace.name)
        """
        last, has_more = "", True
        while has_more:
            after = last
            page = await self._session.run(
                lambda: self._session.write.list_namespaces(
                    prefix=prefix,
                    start_after=after,  # noqa: B023 - called before the next turn
                )
            )
            has_more = bool(page["has_more"])
            for found in page["namespaces"]:
                last = found["namespace"]
                yield self[last]

    def statistics(self) -> dict[str, dict[str, float]]:
        """Count repetitions and their budget, and the logs whose home is known.

        Returns:
            `retries` (`tokens` left, `taken`, `delayed`), `homes` (`logs`, `proxies`) and
            `append_streams` (`open`, `opened`, `failed`, `appended`, `not_taken`; nothing where
            no appends share a request), all counts.

        Raises:
            Nothing.

        Example:
            print(client.statistics()["retries"]["taken"])
        """
        return self._session.statistics()


def _find_credential(
    urls: tuple[str, str], token: str | None, token_file: str | Path | None, ca: str | Path | None
) -> Credential:
    """What the program gives; else what a `duramen run` of the current folder has for both urls."""
    given = make_credential(token=token, token_file=token_file, ca=ca)
    if given != NOTHING_SHOWN:
        return given
    found = [find_credential_of(url) for url in urls]
    return NOTHING_SHOWN if NOTHING_SHOWN in found else found[0]


def _split_urls(url: str, read_url: str | None) -> tuple[str, str]:
    urls = [part.strip().rstrip("/") for part in url.split(",")]
    if read_url is not None:
        urls.append(read_url.rstrip("/"))
    if len(urls) > 2 or not all(part.startswith(("http://", "https://")) for part in urls):
        detail = f"{url!r}: an http:// or https:// url, or two (write, read) with a comma between"
        raise DuramenError("invalid_argument", detail, field="url")
    return urls[0], urls[-1]
