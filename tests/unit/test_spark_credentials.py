"""What a Spark job shows to others: files by name, and no secret among what Spark passes on.

Source: docs/spark.md "Who asks who you are", docs/archive.md "Export".
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Final

import pytest

from duramen.cli.command import ExitCode
from duramen.errors import DuramenError
from duramen_spark.main import main
from pyspark_duramen.options import ReadOptions, WriteOptions

TOKEN: Final = "dur1_" + "a" * 16 + "_" + "b" * 51 + "a"
PLANTED: Final = "planted"
GIVEN: Final = {"url": "https://logs.example:7301", "logs": "shop/orders"}


def test_options_name_the_files_and_hold_no_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    for kind in (ReadOptions, WriteOptions):
        options = kind.parse(GIVEN | {"token_file": str(path), "ca_file": "/ca.crt"})
        assert options.proxy[1:] == (str(path), "/ca.crt")
        for text in (repr(options), pickle.dumps(options).decode("latin-1")):
            assert TOKEN not in text


@pytest.mark.parametrize("kind", [ReadOptions, WriteOptions])
def test_a_token_among_options_is_refused_and_not_repeated(
    kind: type[ReadOptions | WriteOptions],
) -> None:
    with pytest.raises(DuramenError, match="put it in a file, for token_file") as refused:
        kind.parse(GIVEN | {"token": TOKEN})
    assert TOKEN not in str(refused.value)


def test_a_token_is_not_sent_in_plain_text_to_another_machine(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    options = ReadOptions.parse(
        GIVEN | {"url": "http://logs.example:7301", "token_file": str(path)}
    )
    with pytest.raises(DuramenError, match="sent over https"):
        options.proxy.open()


def test_without_a_file_nothing_is_shown() -> None:
    assert ReadOptions.parse(GIVEN).proxy == (GIVEN["url"], None, None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (f"s3.access-key-id={PLANTED}", "--catalog s3.access-key-id: may be a key"),
        (f"credential={PLANTED}", "--catalog credential: may be a key"),
        (f"gcs.oauth2.TOKEN={PLANTED}", "--catalog gcs.oauth2.TOKEN: may be a key"),
        (f"uri=postgresql://me:{PLANTED}@db/catalog", "--catalog uri: may be a key"),
        (f"uri=postgresql://db/catalog?user=me&password={PLANTED}", "--catalog uri: may be"),
        (f"uri=postgresql://me:a/{PLANTED}@db/catalog", "--catalog uri: may be a key"),
        (f"s3.endpoint=https://{PLANTED}@host", "--catalog s3.endpoint: may be a key"),
        (f"header.X-Api-Key={PLANTED}", "--catalog header.X-Api-Key: may be a key"),
        (PLANTED, "--catalog: KEY=VALUE is expected, and number 2 is none"),
    ],
)
def test_an_export_takes_no_key_of_a_catalog_from_its_command_line(
    given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["export", "shop/orders", "--format", "iceberg", "--to", "shop.records"]
    assert main([*line, "--catalog", "type=rest", given]) == ExitCode.USAGE
    told = capsys.readouterr().err
    assert said in told and PLANTED not in told


def test_an_export_takes_what_is_no_secret_of_a_catalog(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["export", "shop/orders", "--format", "iceberg", "--to", "shop.records"]
    line += [
        "--data",
        str(tmp_path),
        "--catalog",
        "uri=http://catalog:8181/a:b",
        "s3.region=x",
    ]
    assert main(line) != ExitCode.OK
    assert "--catalog" not in capsys.readouterr().err, "it looks for a cluster next"
