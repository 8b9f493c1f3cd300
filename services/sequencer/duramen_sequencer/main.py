"""Entry point of the sequencer process: `duramen-sequencer`, `python -m duramen_sequencer.main`.

Options and the frame of the process are those of `duramen.runtime.service`; nothing else is decided
here. Source: docs/protocol/admin.md "Every service".
"""

from __future__ import annotations

import sys

from duramen.cluster import first_process  # noqa: F401 - importing it is the act
from duramen.runtime.service import parse_options, run_service
from duramen_sequencer.service import make_service


def main() -> None:
    """Run one sequencer until it is told to stop."""
    sys.exit(run_service(parse_options("sequencer"), make_service))


if __name__ == "__main__":
    main()
