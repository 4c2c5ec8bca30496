"""The release of hoplite_ray that runs here."""

from __future__ import annotations

import importlib.metadata


def release() -> str:
    """Return the version of the installed package, or "0+source" if a source tree runs as it is."""
    try:
        return importlib.metadata.version("hoplite_ray")
    except importlib.metadata.PackageNotFoundError:
        return "0+source"
