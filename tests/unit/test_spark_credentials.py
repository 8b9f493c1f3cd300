"""What a Spark job shows to a proxy: files by name, and no secret among what Spark passes on.

Source: docs/spark.md "Who asks who you are".
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Final

import pytest

from duramen.errors import DuramenError
from pyspark_duramen.options import ReadOptions, WriteOptions

TOKEN: Final = "dur1_" + "a" * 16 + "_" + "b" * 51 + "a"
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
