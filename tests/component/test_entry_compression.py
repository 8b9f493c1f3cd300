"""Switching entry compression on, and reading what it made through a read proxy.

Source: docs/protocol/configuration.md "Compression", docs/protocol/wire.md "Compressed entry".
"""

from __future__ import annotations

from typing import Any

import google_crc32c

from duramen.core.segment import Totals
from duramen.ids import EntryId
from duramen.units import MIB
from duramen.wire.entry import encode_entry
from duramen.wire.metadata_json import encode_node, read_node
from duramen.wire.nodes.formats import PROCESS_FORMATS
from duramen.wire.read_answers import parse_batches
from duramen.wire.record_batch import decode_batch, encode_batch
from tests.component import life_world, readproxy_world
from tests.component.core_reading import open_log
from tests.component.life_world import PATHS

ZSTD = {"compression": "zstd"}


async def upgrade(world: life_world.World) -> None:
    """The one sequencer of the world is of today."""
    await world.store.set(
        f"{PATHS.sequencers}/s0", encode_node({"formats": dict(PROCESS_FORMATS)}), version=0
    )


async def register(world: life_world.World, path: str, formats: Any = None) -> None:
    fields = {} if formats is None else {"formats": formats}
    await world.store.create(path, encode_node(fields), make_parents=True)


def test_it_is_refused_while_somebody_is_there_who_does_not_read_it() -> None:
    async def scenario(world: life_world.World) -> None:
        await upgrade(world)
        places = [PATHS.available, PATHS.sequencers, PATHS.read_proxies]
        for place in places:
            await register(world, f"{place}/new", dict(PROCESS_FORMATS))
        await register(world, f"{PATHS.write_proxies}/old")  # it never sees an entry
        for place in places:
            for formats in (None, {}, {"entry": 1}, {"entry": "2"}, ["entry"]):
                await register(world, f"{place}/old-one", formats)
                error = await world.refused("create_log", namespace="ns", log="log", config=ZSTD)
                assert (error.code, error.field) == ("invalid_argument", "compression")
                assert "not read by old-one: upgrade first" in error.detail
                await world.store.delete(f"{place}/old-one", version=0)
        log = await world.log(await world.create(ZSTD))
        assert log.config.compression == "zstd"

    life_world.run(scenario)


def test_other_logs_are_made_whoever_is_there_and_stored_as_ever() -> None:
    async def scenario(world: life_world.World) -> None:
        await register(world, f"{PATHS.read_proxies}/old")
        log = await world.log(await world.create({"compression": "none"}))
        stored = await world.store.get(PATHS.log(log.log_id))
        assert stored is not None and "compression" not in read_node(stored.data)["config"]

    life_world.run(scenario)


def test_many_who_must_be_upgraded_are_told_in_one_line() -> None:
    async def scenario(world: life_world.World) -> None:
        await upgrade(world)
        for number in range(8):
            await register(world, f"{PATHS.available}/b{number}")
        error = await world.refused("create_log", namespace="ns", log="log", config=ZSTD)
        assert "b0, b1, b2, b3, b4 and 3 more: upgrade first" in error.detail

    life_world.run(scenario)


def test_an_answer_is_bounded_by_what_an_entry_becomes() -> None:
    """A few hundred bytes could be megabytes for who asked for one record."""

    async def scenario(world: readproxy_world.World) -> None:
        await world.open_segment()
        assert world.segment is not None
        batches = [encode_batch([bytes(MIB)], 5) for _ in range(4)]
        world.totals = Totals(4, sum(map(len, batches)), None, 5)
        entry = encode_entry(
            ledger_id=world.segment.ledger_id, entry_id=EntryId(0), before=Totals(),
            batches=batches, record_count=4, after=world.totals, is_compressing=True,
        )  # fmt: skip
        assert len(entry) < 1_000
        await world.store_entry(entry)
        for size, count in (("1KiB", 1), ("1MiB", 1), ("3MiB", 2), ("16MiB", 4)):
            answer = await world.get(f"?bytes={size}", accept=readproxy_world.BATCH)
            placed = parse_batches(answer.content)
            assert len(placed) == count, size
            assert decode_batch(bytes(placed[0].batch)).bodies == [bytes(MIB)]
            assert answer.headers["duramen-next"] == f"seq:{count}"
        answer = await world.get("?from=2&count=1", accept="application/json")
        assert [record["seq_num"] for record in answer.json()["records"]] == [2]

    readproxy_world.run(scenario)


def test_an_embedded_reader_opens_a_bounded_number_of_bytes_at_a_time() -> None:
    """Some KiB of a read are 20 MiB of records."""

    async def scenario(world: readproxy_world.World) -> None:
        await world.open_segment()
        assert world.segment is not None
        batch = encode_batch([bytes(MIB)], 5)
        for number in range(20):
            before = world.totals
            world.totals = before.plus(Totals(1, len(batch), None, 5))
            entry = encode_entry(
                ledger_id=world.segment.ledger_id, entry_id=EntryId(number), before=before,
                batches=[batch], record_count=1, after=world.totals, is_compressing=True,
            )  # fmt: skip
            await world.store_entry(entry)
        await world.close_segment()
        log = open_log(world)
        found = [answer async for answer in log.read(0)]
        assert [record.seq_num for answer in found for record in answer] == list(range(20))
        assert max(len(answer) for answer in found) < 8
        assert [answer.is_at_tail for answer in found] == [False] * (len(found) - 1) + [True]
        bounded = [answer async for answer in log.read(3, count=9)]
        assert [record.seq_num for answer in bounded for record in answer] == list(range(3, 12))

    readproxy_world.run(scenario)


def test_an_entry_that_is_not_what_its_header_says_is_an_error_and_no_gap() -> None:
    async def scenario(world: readproxy_world.World) -> None:
        await world.open_segment()
        assert world.segment is not None
        batch = encode_batch([b"again " * 200], 5)
        world.totals = Totals(1, len(batch), None, 5)
        entry = bytearray(
            encode_entry(
                ledger_id=world.segment.ledger_id, entry_id=EntryId(0), before=Totals(),
                batches=[batch], record_count=1, after=world.totals, is_compressing=True,
            )
        )  # fmt: skip
        entry[36] ^= 1
        entry[4:8] = google_crc32c.value(bytes(entry[8:])).to_bytes(4, "little")
        await world.store_entry(bytes(entry))
        for media in ("application/json", readproxy_world.BATCH, readproxy_world.NDJSON):
            answer = await world.get("?from=0&wait=0s", accept=media)
            assert answer.status_code == 500 and "cannot be decompressed" in answer.text, media

    readproxy_world.run(scenario)
