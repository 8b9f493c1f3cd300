"""What an HDFS that answers with less than it should is told apart from one that does its work.

No HDFS can be made to lose bytes at will: the NameNode and its DataNode are played here, beneath
`requests`. With a real one: `tests/contract/test_cold_store`.
Source: duramen.runtime.cold.webhdfs, docs/adr/0015-webhdfs.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import requests
from requests.adapters import BaseAdapter

from duramen.runtime.cold.store import AlreadyThere, ColdStoreDown, NotThere
from duramen.runtime.cold.webhdfs import WebHdfsStore

ROOT = "/cold"
PATH = "v1/a.parquet"
DATA = bytes(range(100))


class HandHdfs(BaseAdapter):
    """Files by path; what is stored and what is given may be cut short."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}
        self.stored_bytes_max: int | None = None
        self.given_bytes_max: int | None = None
        self.is_renaming = True

    def send(  # type: ignore[override]  # requests hands over more, which nothing here looks at
        self, request: requests.PreparedRequest, **_: Any
    ) -> requests.Response:
        url = urlsplit(request.url or "")
        query = dict(parse_qsl(url.query))
        path = url.path.removeprefix("/webhdfs/v1")
        if url.hostname == "datanode":
            assert request.body is not None
            whole = b"".join(request.body)  # type: ignore[arg-type]  # sent as it is written
            self.files[path] = whole[: self.stored_bytes_max]
            return _answer(request, 201)
        act: Callable[[requests.PreparedRequest, str, dict[str, str]], requests.Response]
        act = getattr(self, f"_{query['op'].lower()}")
        return act(request, path, query)

    def close(self) -> None:
        pass

    def _getfilestatus(
        self, request: requests.PreparedRequest, path: str, _: dict[str, str]
    ) -> requests.Response:
        if path == ROOT:
            return _answer(request, 200, {"FileStatus": {"type": "DIRECTORY", "length": 0}})
        if path not in self.files:
            error = {"exception": "FileNotFoundException", "message": path}
            return _answer(request, 404, {"RemoteException": error})
        status = {"type": "FILE", "length": len(self.files[path])}
        return _answer(request, 200, {"FileStatus": status})

    def _create(
        self, request: requests.PreparedRequest, path: str, _: dict[str, str]
    ) -> requests.Response:
        answer = _answer(request, 307)
        answer.headers["Location"] = f"http://datanode:1{path}"
        return answer

    def _mkdirs(
        self, request: requests.PreparedRequest, _path: str, _: dict[str, str]
    ) -> requests.Response:
        return _answer(request, 200, {"boolean": True})

    def _rename(
        self, request: requests.PreparedRequest, path: str, query: dict[str, str]
    ) -> requests.Response:
        is_done = self.is_renaming and query["destination"] not in self.files
        if is_done:
            self.files[query["destination"]] = self.files.pop(path)
        return _answer(request, 200, {"boolean": is_done})

    def _delete(
        self, request: requests.PreparedRequest, path: str, _: dict[str, str]
    ) -> requests.Response:
        return _answer(request, 200, {"boolean": self.files.pop(path, None) is not None})

    def _open(
        self, request: requests.PreparedRequest, path: str, query: dict[str, str]
    ) -> requests.Response:
        offset = int(query["offset"])
        data = self.files[path][offset : offset + int(query["length"])]
        return _answer(request, 200, data[: self.given_bytes_max])


def _answer(
    request: requests.PreparedRequest, status: int, content: object = b""
) -> requests.Response:
    answer = requests.Response()
    answer.request, answer.url, answer.status_code = request, request.url or "", status
    answer._content = content if isinstance(content, bytes) else json.dumps(content).encode()
    return answer


@pytest.fixture
def hdfs(monkeypatch: pytest.MonkeyPatch) -> HandHdfs:
    made = HandHdfs()

    def make_session() -> requests.Session:
        session = session_class()
        session.mount("http://", made)
        return session

    session_class = requests.Session
    monkeypatch.setattr(requests, "Session", make_session)
    return made


@pytest.fixture
def store(hdfs: HandHdfs) -> WebHdfsStore:
    assert not hdfs.files
    return WebHdfsStore("namenode:1", ROOT, None)


def test_what_is_stored_whole_is_there_and_read_in_ranges(
    hdfs: HandHdfs, store: WebHdfsStore
) -> None:
    store.put_new(PATH, DATA)
    assert hdfs.files == {f"{ROOT}/{PATH}": DATA}
    assert store.read(PATH, 10, 20) == DATA[10:30]
    assert store.read(PATH, 90, 20) == DATA[90:], "what lies beyond the end is not missing"


@pytest.mark.parametrize("stored_bytes", [0, 99])
def test_a_file_that_was_stored_in_part_is_never_there(
    hdfs: HandHdfs, store: WebHdfsStore, stored_bytes: int
) -> None:
    """Its hot copies would be released."""
    hdfs.stored_bytes_max = stored_bytes
    with pytest.raises(ColdStoreDown, match=f"{stored_bytes} of 100 bytes were stored"):
        store.put_new(PATH, DATA)
    with pytest.raises(NotThere):
        store.size(PATH)
    assert not hdfs.files, "nor is anything left of it"


def test_a_file_that_was_not_renamed_is_not_called_stored(
    hdfs: HandHdfs, store: WebHdfsStore
) -> None:
    hdfs.is_renaming = False
    with pytest.raises(ColdStoreDown, match="was not renamed"):
        store.put_new(PATH, DATA)
    assert not hdfs.files


def test_a_name_that_another_writer_took_meanwhile_stays_its_own(
    hdfs: HandHdfs, store: WebHdfsStore
) -> None:
    writer = store.open_writer(PATH)
    writer.write(DATA)
    store.put_new(PATH, b"another's")
    with pytest.raises(AlreadyThere):
        writer.commit()
    writer.abort()
    assert hdfs.files == {f"{ROOT}/{PATH}": b"another's"}


@pytest.mark.parametrize("given_bytes", [0, 19])
def test_an_answer_that_is_too_short_is_no_end_of_the_file(
    hdfs: HandHdfs, store: WebHdfsStore, given_bytes: int
) -> None:
    store.put_new(PATH, DATA)
    hdfs.given_bytes_max = given_bytes
    with pytest.raises(ColdStoreDown, match=f"is {20 - given_bytes} bytes short"):
        store.read(PATH, 10, 20)
