"""What MkDocs does beyond its plug-ins.

The headings within docstrings begin lines of their own, and so does each argument below Args. Links
to files outside docs/ are links on a code host only: the site does not hold these files, so it
shows their names.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from mkdocs.structure.pages import Page

_HEADING = re.compile(
    r"(<p>|\n)(Args|Shapes|Returns|Raises|Cost|Source|Example|REQUIRES):(?: +|(?=</p>))"
)
_ARGS = re.compile(r"<b>Args</b>: .*?(?=<br>|</p>)", re.S)
_ARGUMENT = re.compile(r"(<b>Args</b>: |\n +)((?:\w+, )*\w+): ")
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
    html = _HEADING.sub(lambda m: f"{'<p>' if m[1] == '<p>' else '<br>'}<b>{m[2]}</b>: ", html)
    return _ARGS.sub(lambda m: _ARGUMENT.sub(_argument, m[0]), html)


def _argument(match: re.Match[str]) -> str:
    """Begin a line with an argument's name; the first one stands beside the heading."""
    before = match[1] if match[1].startswith("<b>") else "<br>&emsp;"
    return f"{before}<code>{match[2]}</code>: "
