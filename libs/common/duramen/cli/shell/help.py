"""Help texts as they are written: nothing of them is markup, and paragraphs fill the line.

Markup would swallow what looks like a tag or a style: `<data>/cold`, `duramen[run]`. Plain text
keeps the line ends of the source in return; `unfold_help` joins the lines of each paragraph, so
that they break where the terminal does.

Called by `main` of every command line, once its commands are there.
"""

from __future__ import annotations

import inspect
import re
from typing import Final, Literal

from cyclopts import App

PLAIN: Final[Literal["plaintext"]] = "plaintext"
"""Of `help_format`."""


def unfold_help(app: App) -> None:
    """Give every command below `app` its docstring with whole paragraphs as its help."""
    for name in app:
        if name.startswith("-"):
            continue
        below = app[name]
        text = inspect.getdoc(below.default_command) if below.default_command else None
        if text is not None:
            below.help = unfold(text)
        unfold_help(below)


def unfold(text: str) -> str:
    """Each paragraph on one line."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
