"""What MkDocs does beyond its plug-ins.

The headings within docstrings begin lines of their own. Links to files outside docs/ are links on
a code host only: the site does not hold these files, so it shows their names.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from mkdocs.structure.pages import Page

_HEADING = re.compile(r"(<p>|\n)(Shapes|Returns|Raises|Cost|Source|REQUIRES): +")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]*)[^)]*\)")


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Called by MkDocs for each page's source."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        if not target.startswith("../"):
            return link[0]
        return link[1] if "`" in link[1] else f"`{link[1]}`"

    return _LINK.sub(shown, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Called by MkDocs for each page."""
    return _HEADING.sub(lambda m: f"{'<p>' if m[1] == '<p>' else '<br>'}<b>{m[2]}</b>: ", html)
