"""The examples in the docstrings of the SDK run as they stand, and both faces say the same.

Each runs against the faked cluster of `sdk_world`, with the names that examples take for granted:
`client`, `namespace`, `log`, `producer`, `ticket`, `batch`, and what `duramen.client` exports. The
longer examples of docs/sdk.md run in tests/process/test_sdk.py. That there is an example for each
method is tests/style/test_faces.py's matter.
"""

from __future__ import annotations

import asyncio
import inspect
import textwrap
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

import duramen.client
from duramen.client import (
    BulkTicket,
    Client,
    Log,
    Namespace,
    PartitionedLog,
    PartitionedProducer,
    Producer,
    ReadBatch,
    SyncBulkTicket,
    SyncClient,
    SyncLog,
    SyncNamespace,
    SyncPartitionedLog,
    SyncPartitionedProducer,
    SyncProducer,
    SyncTicket,
    Ticket,
)
from tests.component.sdk_world import running_cluster
from tests.style.faces import SPECIAL, read_sections

TWINS = [
    (Client, SyncClient), (Namespace, SyncNamespace), (Log, SyncLog), (Producer, SyncProducer),
    (PartitionedLog, SyncPartitionedLog), (PartitionedProducer, SyncPartitionedProducer),
]  # fmt: skip
ASYNC = (
    Client, Namespace, Log, Producer, Ticket, BulkTicket, ReadBatch, PartitionedLog,
    PartitionedProducer,
)  # fmt: skip
SYNC = (
    SyncClient, SyncNamespace, SyncLog, SyncProducer, SyncTicket, SyncBulkTicket,
    SyncPartitionedLog, SyncPartitionedProducer,
)  # fmt: skip
URL = "http://localhost:7301"
GIVEN = ("client", "namespace", "log", "producer", "ticket", "batch")
OWN_WORDS = {
    "SyncProducer.append", "SyncProducer.send", "SyncProducer.append_many",
    "SyncPartitionedProducer.append", "SyncPartitionedProducer.send",
}  # fmt: skip
"""They block, where those of the other face wait or raise `overloaded`."""


class Example(NamedTuple):
    name: str
    source: str


def list_examples(kinds: tuple[type, ...]) -> list[Example]:
    return [
        Example(f"{kind.__name__}.{name}", source)
        for kind in kinds
        for name, method in vars(kind).items()
        if (source := read_sections(inspect.getdoc(method)).get("Example"))
        and (not name.startswith("_") or name in {*SPECIAL, "__init__"})
    ]


def compile_example(example: Example, url: str, *, is_async: bool) -> Callable[..., Any]:
    """A function of the names that the example takes for granted."""
    head = f"{'async ' if is_async else ''}def play({', '.join(GIVEN)}):\n"
    names: dict[str, Any] = {name: getattr(duramen.client, name) for name in duramen.client.__all__}
    source = textwrap.indent(example.source.replace(URL, url), "    ")
    exec(compile(head + source, example.name, "exec"), names)
    play: Callable[..., Any] = names["play"]
    return play


def play_all(kinds: tuple[type, ...], play: Callable[[Example, str], Awaitable[None]]) -> None:
    """Each example with the log `shop/orders`, which holds two records, and nothing else."""

    async def run() -> None:
        async with running_cluster() as cluster:
            for example in list_examples(kinds):
                cluster.logs.clear()
                cluster.namespaces.clear()
                cluster.add_log("shop/orders")
                if not example.name.endswith(("partitioned_log", "Log.ensure")):
                    for partition in range(4):
                        cluster.add_log(f"shop/clicks.{partition}-of-4")
                async with asyncio.timeout(30), Client(cluster.url) as client:
                    await client.log("shop/orders").append([b"a", b"b"])
                    await play(example, cluster.url)

    asyncio.run(run())


def test_examples_run() -> None:
    async def play(example: Example, url: str) -> None:
        async with Client(url) as client:
            log = client.log("shop/orders")
            async with log.producer() as producer:
                ticket = await producer.send(b"c")
                await ticket
                (batch,) = [batch async for batch in log.read("head")]
                run = compile_example(example, url, is_async=True)
                await run(client, client["shop"], log, producer, ticket, batch)

    play_all(ASYNC, play)


def test_blocking_examples_run() -> None:
    def play(example: Example, url: str) -> None:
        with SyncClient(url) as client:
            log = client.log("shop/orders")
            with log.producer() as producer:
                ticket = producer.send(b"c")
                ticket.result()
                (batch,) = log.read("head")
                run = compile_example(example, url, is_async=False)
                run(client, client["shop"], log, producer, ticket, batch)

    async def play_in_thread(example: Example, url: str) -> None:
        await asyncio.to_thread(play, example, url)

    play_all(SYNC, play_in_thread)


@pytest.mark.parametrize("is_async", [True, False])
def test_an_example_with_a_wrong_name_fails(is_async: bool) -> None:
    wrong = compile_example(Example("Log.cut", "log.cut(3)"), URL, is_async=is_async)

    async def run() -> None:
        result = wrong(*[Client(URL).log("shop/orders")] * len(GIVEN))
        if is_async:
            await result

    with pytest.raises(AttributeError, match="cut"):
        asyncio.run(run())


@pytest.mark.parametrize(("plain", "blocking"), TWINS)
def test_both_faces_say_the_same(plain: type, blocking: type) -> None:
    for name, _ in list_examples((blocking,)):
        method = name.partition(".")[2]
        if name not in OWN_WORDS:
            assert encode_contract(blocking, method) == encode_contract(plain, method), name


def encode_contract(kind: type, name: str) -> dict[str, list[str]]:
    """What a docstring promises, word by word, with the classes of the other face's names."""
    sections = read_sections(inspect.getdoc(getattr(kind, name)))
    return {
        section: text.replace("`Sync", "`").split()
        for section, text in sections.items()
        if section != "Example"
    }
