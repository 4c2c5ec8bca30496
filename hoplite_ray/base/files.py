"""Small files that others read at any time: each has its old content or its new one, never half."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def replace_file(file: Path, content: bytes) -> None:
    """Give `file` this content, mode 0600, whether it is there or not.

    Raises:  OSError if it can't be written, as on a full disk; then it is as it was.
    """
    unfinished = file.with_name(f".{file.name}.{secrets.token_hex(4)}")  # two may do it at once
    try:
        with open(
            os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
        ) as stream:
            stream.write(content)
        unfinished.rename(file)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
