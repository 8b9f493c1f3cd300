"""A Spark with executors of its own, for one job at a time, and all that shows of it meanwhile.

The executors are processes (`local-cluster`), so they have command lines, environments and logs;
the page is on. A mark is among the settings as a careless person puts a key there: whoever searches
knows by it that a place was looked at. Used by `test_planted_keys`. Source: docs/security.md.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import httpx
import pyspark

from duramen.cluster.layout import pick_free_port
from tests.process.secret_places import read_files
from tests.process.times import HANG_S
from tests.spark.conftest import SHORT_JVM

PAUSE_S: Final = 0.1
_API: Final = "/api/v1/applications"
_PAGES: Final = (
    "environment", "allexecutors", "jobs", "stages?details=true", "executors/driver/threads",
    "sql?details=true&planDescription=true&length=100",
)  # fmt: skip


class WatchedSpark:
    """Runs jobs, and keeps what was seen of them: place → content."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        """Nothing runs yet.

        Args:
            folder: is made; gets event logs and what executors write.
            environment: of a small Spark, as fixture `spark_env` has it.
        """
        self.mark = secrets.token_hex(16)
        self.places: dict[str, bytes] = {}
        self._events, self._home = folder / "events", folder / "home"
        self._events.mkdir(parents=True)
        self._home.mkdir()
        # Executors write beside Spark: this one is a folder of our own with all that the other has.
        for path in Path(pyspark.__file__).parent.iterdir():
            (self._home / path.name).symlink_to(path)
        self._page = f"http://127.0.0.1:{pick_free_port()}"
        settings = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": self._events.as_uri(),
            "spark.ui.enabled": "true",
            "spark.ui.port": self._page.rpartition(":")[2],
            "spark.task.maxFailures": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": f"'{SHORT_JVM} -Dshown={self.mark}'",
            "spark.executorEnv.SHOWN": self.mark,
        }
        given = " ".join(f"--conf {name}={value}" for name, value in settings.items())
        self._environment = environment | {
            "SPARK_HOME": str(self._home),
            "PYSPARK_SUBMIT_ARGS": (
                f"--master local-cluster[1,2,512] --driver-memory 512m {given} "
                f"--driver-java-options '{SHORT_JVM}' pyspark-shell"
            ),
        }
        self._is_over = threading.Event()

    def run(self, name: str, *command: str) -> str:
        """Run a job to its end; what it printed.

        Raises:
            AssertionError: it failed.
        """
        self._is_over.clear()
        process = subprocess.Popen(
            [sys.executable, *command], env=os.environ | self._environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        watching = threading.Thread(target=self._watch, args=(name, process.pid), daemon=True)
        watching.start()
        try:
            stdout, stderr = process.communicate(timeout=3 * HANG_S)
        finally:
            process.kill()
            self._is_over.set()
            watching.join()
        self.places |= {f"output: {name}": stdout, f"errors: {name}": stderr}
        for kind, folder in (("event log", self._events), ("executor", self._home / "work")):
            found = read_files(folder)
            self.places |= {f"{kind}: {path}": content for path, content in found.items()}
        assert process.returncode == 0, stderr.decode()[-3_000:]
        return stdout.decode()

    def _watch(self, job: str, session: int) -> None:
        with httpx.Client(base_url=self._page, timeout=HANG_S) as page:
            while not self._is_over.wait(PAUSE_S):
                self._read_processes(session)
                with contextlib.suppress(httpx.HTTPError):
                    self._read_pages(job, page)

    def _read_processes(self, session: int) -> None:
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getsid(int(folder.name)) == session:
                    for name in ("cmdline", "environ"):
                        self.places[f"{name}: {folder.name}"] = (folder / name).read_bytes()

    def _read_pages(self, job: str, page: httpx.Client) -> None:
        """Each page as it was last; what changes only grows."""
        listed = page.get(_API)
        if not listed.headers.get("content-type", "").startswith("application/json"):
            return  # it says that it begins
        for application in listed.json():
            paths = [f"{_API}/{application['id']}/{path}" for path in _PAGES]
            for path in (*paths, "/environment/", "/SQL/"):
                answer = page.get(path)
                if answer.is_success:
                    self.places[f"page: {path} of {job}"] = answer.content
