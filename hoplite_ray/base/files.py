"""Replace small files as a whole: a reader sees the old content or the new one, never half."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def replace_file(file: Path, content: bytes) -> None:
    """Replace the content of `file`, or make the file, with mode 0600.

    Raises:  OSError if the content can't be written, for example on a full disk; the file then
             keeps its old content.
    """
    unfinished = file.with_name(
        f".{file.name}.{secrets.token_hex(4)}"
    )  # two processes may do it at once
    try:
        with open(
            os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
        ) as stream:
            stream.write(content)
        unfinished.rename(file)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
