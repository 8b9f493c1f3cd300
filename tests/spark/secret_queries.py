"""A driver that reads and writes as a client with a token: in batches, as a stream, and refused.

What it prints, plans and pickles is searched. A token is shown that is believed, one that nobody
knows, a file that holds none, and one that is replaced between a plan and its tasks.

Run by `test_planted_keys` as `-m tests.spark.secret_queries`. Source: docs/spark.md.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark import cloudpickle
from pyspark.sql.types import StructType

from duramen_spark.session import open_session
from pyspark_duramen.source import DefaultSource

Options = dict[str, str]

LOG: Final = "default/planted"
COPY: Final = "default/copy"
REFUSED: Final = "refused"


def main(given: dict[str, str]) -> None:
    """Do all of it; what is refused is printed as Spark tells it."""
    tokens, folder = Path(given["tokens"]), Path(given["folder"])
    session = open_session("planted")

    def read_by(name: str) -> Options:
        return {"url": given["url"], "logs": LOG, "token_file": str(tokens / name)}

    def write_by(name: str) -> Options:
        return {"url": given["write_url"], "logs": COPY, "token_file": str(tokens / name)}

    def load(options: Options) -> Any:
        return session.read.format("duramen").options(**options).load()

    # From the archive, which executors read themselves; the stream reads what bookies have.
    archived = read_by("good") | {"cold_store": given["cold_store"]}
    rows = load(archived)
    rows.explain(True)
    print("rows", rows.count(), rows.select("body").distinct().count())
    write(rows, write_by("good"))
    stream(session, read_by("good"), write_by("good"), folder / "checkpoint")
    keep_pickles(archived, folder / "pickles")

    def read_wrong(name: str) -> None:
        load(read_by(name)).count()

    def write_wrong(name: str) -> None:
        write(rows, write_by(name))

    def stream_wrong(name: str) -> None:
        stream(session, read_by(name), write_by("good"), folder / f"checkpoint-{name}")

    for name in ("unknown", "malformed"):
        for act in (read_wrong, write_wrong, stream_wrong):
            tell(f"{act.__name__}, {name}", partial(act, name))
    shutil.copy(tokens / "good", tokens / "replaced")
    planned = load(read_by("replaced")).rdd
    assert planned.getNumPartitions() == 1, "it is planned"
    shutil.copy(tokens / "unknown", tokens / "replaced")
    tell("task, unknown", planned.collect)
    session.stop()


def write(rows: Any, options: Options) -> None:
    rows.select("body").write.format("duramen").options(**options).mode("append").save()


def stream(session: Any, reading: Options, writing: Options, checkpoint: Path) -> None:
    """What is there, as one micro-batch."""
    rows = session.readStream.format("duramen").options(**reading).load().select("body")
    kept = {"checkpointLocation": str(checkpoint)}
    started = rows.writeStream.format("duramen").options(**writing, **kept)
    query = started.trigger(availableNow=True).start()
    query.awaitTermination()
    print("stream", query.lastProgress["numInputRows"])


def keep_pickles(options: Options, folder: Path) -> None:
    """What Spark hands to executors, once it has planned."""
    folder.mkdir()
    source = DefaultSource(options)
    schema = StructType.fromDDL(source.schema())
    assert isinstance(schema, StructType)
    reader = source.reader(schema)
    handed = source, reader, reader.partitions()
    dump: Callable[[object], bytes] = cloudpickle.dumps
    (folder / "batch").write_bytes(dump(handed))


def tell(what: str, act: Callable[[], object]) -> None:
    """What a person sees of a refusal.

    Raises:
        AssertionError: it was none.
    """
    try:
        act()
    except Exception as error:  # Spark's and ours: whatever is told is searched
        print(f"{REFUSED} {what}: {' '.join(str(error).split())}")
    else:
        raise AssertionError(f"{what} was not refused")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
