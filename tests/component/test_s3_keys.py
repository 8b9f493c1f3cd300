"""Keys of a bucket from a file: whose it has to be, what it says, and when it is read anew.

Source: docs/cold-store.md "Keys of a bucket".
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from duramen.errors import DuramenError
from duramen.runtime.cold import ColdStoreDown, open_cold_store
from duramen.runtime.cold.s3_keys import find_keys_file

SECRET = "for tests / %"


def write_keys(
    path: Path, secret: str = SECRET, section: str = "default", mode: int = 0o600
) -> None:
    lines = [f"[{section}]", "aws_access_key_id = AKIA1", f"aws_secret_access_key = {secret}"]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(mode)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "keys"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    return path


def test_the_section_that_is_named_is_read_anew(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_keys(file, section="cold")
    monkeypatch.setenv("AWS_PROFILE", "cold")
    keys = find_keys_file()
    assert keys is not None
    first = keys()
    assert (first["access_key_id"], first["secret_access_key"]) == ("AKIA1", SECRET)
    assert first["token"] is None and first["expires_at"] is not None
    with file.open("a") as opened:
        opened.write("aws_session_token = T\n")
    assert keys()["token"] == "T"
    for broken in ("", f"[cold]\naws_secret_access_key {SECRET}"):
        file.write_text(broken)
        assert [keys()["token"] for _ in range(3)] == ["T"] * 3, "those of before are used on"
    assert caplog.text.count("used on") == 1 and SECRET not in caplog.text


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (None, 0o600, "is missing"),
        ("[default]\naws_access_key_id = a\naws_secret_access_key = b\n", 0o640, "may be read by"),
        ("[default]\naws_access_key_id = a\n", 0o600, "no aws_secret_access_key of the section"),
        ("[other]\naws_access_key_id = a\n", 0o600, r"no default of the section \[default\]"),
        (f"{SECRET}\n", 0o600, "is no file of keys"),
    ],
)
def test_a_file_that_gives_no_keys_is_refused_and_not_shown(
    file: Path, text: str | None, mode: int, said: str
) -> None:
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    with pytest.raises(DuramenError, match=said) as refused:
        open_cold_store("s3://bucket/prefix")
    assert SECRET not in refused.value.detail


def test_variables_come_before_a_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_keys(file)
    assert find_keys_file() is not None
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    assert find_keys_file() is None


def test_half_a_pair_of_variables_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with pytest.raises(DuramenError, match=r"prefix: .*Missing SecretAccessKey"):
        open_cold_store("s3://bucket/prefix")


class Refusing(BaseHTTPRequestHandler):
    """Refuses as servers of S3 do: the answer repeats the key, some in its first line."""

    ANSWER = (
        b"<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>AKIA1</AWSAccessKeyId></Error>"
    )

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(403)
        self.send_header("Content-Length", str(len(self.ANSWER)))
        self.end_headers()
        self.wfile.write(self.ANSWER)

    def do_PUT(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def refusing_url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def test_a_refusal_names_its_code_and_no_key(
    file: Path, monkeypatch: pytest.MonkeyPatch, refusing_url: str
) -> None:
    write_keys(file)
    monkeypatch.setenv("AWS_ENDPOINT_URL", refusing_url)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    store = open_cold_store("s3://bucket/prefix")
    for ask in (lambda: store.put_new("a", b""), lambda: list(store.list(""))):
        with pytest.raises(ColdStoreDown, match=r"403 Forbidden \(SignatureDoesNotMatch\)") as down:
            ask()
        # With all that a log, or Spark for a task that failed, shows of an error.
        assert "AKIA1" not in "".join(traceback.format_exception(down.value))
