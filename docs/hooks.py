"""What MkDocs does beyond its plug-ins: the headings within docstrings begin lines of their own."""

from __future__ import annotations

import re
from typing import Any

_HEADING = re.compile(r"(<p>|\n)(Shapes|Returns|Raises|Cost|Source|REQUIRES): +")


def on_page_content(html: str, **_: Any) -> str:
    """Called by MkDocs for each page."""
    return _HEADING.sub(lambda m: f"{'<p>' if m[1] == '<p>' else '<br>'}<b>{m[2]}</b>: ", html)
