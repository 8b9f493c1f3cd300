"""Log lines as JSON, one object a line: time, level, logger, message, and the traceback if there is
one.

Set up once at the start, for kopf's and kr8s' loggers too. Called by `main.py`.
"""

import logging
import sys
from datetime import UTC, datetime

import orjson


class JsonLines(logging.Formatter):
    """One JSON object for a record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        moment = datetime.fromtimestamp(record.created, UTC)
        fields = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(fields).decode()


def set_up_logging(*, is_verbose: bool = False) -> None:
    """Everything to standard error, as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in ("httpx", "httpcore", "kr8s"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # kopf tells of every event that it sees: the workers' lines say more in fewer.
    logging.getLogger("kopf").setLevel(logging.INFO if is_verbose else logging.WARNING)
    logging.getLogger("duramen_operator").setLevel(logging.DEBUG if is_verbose else logging.INFO)
