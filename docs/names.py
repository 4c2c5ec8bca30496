"""The table of names in reference/python-api.md: `python docs/names.py` writes it anew.

The descriptions of that page are on the site alone; the table reads on a code host, too. Each name
that the page describes has its first sentence, and a link to the file that defines it.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reference/python-api.md"
BEGIN, END = "<!-- names: made by docs/names.py -->", "<!-- end of names -->"
_DESCRIBED = re.compile(r"^::: ([\w.]+)$", re.M)
_SENTENCE = re.compile(r"(.+?\.)(?=\s|$)", re.S)


def table(page: str) -> str:
    """Return the table of all names that the page describes."""
    rows = ["| name | does |", "|---|---|", *map(_row, _DESCRIBED.findall(page))]
    return "\n".join([BEGIN, "", *rows, "", END])


def renew(page: str) -> str:
    """Return the page with the table as it must be."""
    before, _, rest = page.partition(BEGIN)
    return before + table(page) + rest.partition(END)[2]


def _row(path: str) -> str:
    found = _find(path)
    source = inspect.getsourcefile(found)
    assert source is not None
    file = Path(source).resolve().relative_to(ROOT)
    name = path.removeprefix("hoplite_ray.") if path != "hoplite_ray.errors" else "errors"
    return f"| [`{name}`](../../{file}) | {_first_sentence(found)} |"


def _find(path: str) -> Any:
    """Follow the names of a path; a module is imported where its package lacks the name."""
    first, *names = path.split(".")
    found: Any = importlib.import_module(first)
    for name in names:
        if not hasattr(found, name):
            importlib.import_module(f"{found.__name__}.{name}")
        found = getattr(found, name)
    return found


def _first_sentence(found: Any) -> str:
    text = inspect.getdoc(found) or ""
    sentence = _SENTENCE.match(text)
    assert sentence is not None, f"{found} has no docstring"
    return " ".join(sentence[1].split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(renew(PAGE.read_text()))
