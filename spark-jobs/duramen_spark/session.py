"""The Spark session of a job: what spark-submit configured, or this machine alone.

Started by `spark-submit` the session has its master and memory from there. Started by itself it is
local: all cores, a task is tried four times as in a cluster, no web page.

Called by the commands. Source: docs/archive.md.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

LOCAL_MASTER: Final = "local[*,4]"


def open_session(name: str) -> Any:
    """A `SparkSession`; the caller stops it.

    Raises:
        ImportError: PySpark is not installed.
        Exception: of PySpark, such as that there is no Java runtime.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if "SPARK_ENV_LOADED" not in os.environ:
        # Without it Spark asks what the machine's name resolves to, which a laptop may not know.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - large, and an extra
    from pyspark.sql import SparkSession  # noqa: PLC0415

    # Only with the JVM there does a configuration have what spark-submit was given.
    SparkContext._ensure_initialized()
    conf = SparkConf()
    if not conf.contains("spark.master"):
        conf.setMaster(LOCAL_MASTER)
    conf.setIfMissing("spark.ui.enabled", "false")
    conf.setIfMissing("spark.ui.showConsoleProgress", "false")
    conf.setIfMissing("spark.app.name", name)
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
