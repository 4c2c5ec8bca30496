"""Plain columns: the same in a terminal, in a log and behind a pipe, and without another wheel."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[str]) -> str:
    """Align `rows` under `head`; the columns named by `right` end at the same place."""
    table = [list(head), *map(list, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = []
    for row in table:
        cells = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(row, widths, head, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def size(size_bytes: int) -> str:
    """Return 1536 as 1.5 KiB."""
    value, unit = float(size_bytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"
