"""What MkDocs does beyond its plug-ins.

The headings within docstrings begin lines of their own, and so does each argument below Args.
"""

from __future__ import annotations

import re
from typing import Any

_HEADING = re.compile(
    r"(<p>|\n)(Args|Shapes|Returns|Raises|Cost|Source|Example|REQUIRES):(?: +|(?=</p>))"
)
_ARGS = re.compile(r"<b>Args</b>: .*?(?=<br>|</p>)", re.S)
_ARGUMENT = re.compile(r"(<b>Args</b>: |\n +)((?:\w+, )*\w+): ")


def on_page_content(html: str, **_: Any) -> str:
    """Called by MkDocs for each page."""
    html = _HEADING.sub(lambda m: f"{'<p>' if m[1] == '<p>' else '<br>'}<b>{m[2]}</b>: ", html)
    return _ARGS.sub(lambda m: _ARGUMENT.sub(_argument, m[0]), html)


def _argument(match: re.Match[str]) -> str:
    """Begin a line with an argument's name; the first one stands beside the heading."""
    before = match[1] if match[1].startswith("<b>") else "<br>&emsp;"
    return f"{before}<code>{match[2]}</code>: "
