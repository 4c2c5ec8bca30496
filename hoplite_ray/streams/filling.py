"""Reads the tensors of a file straight into an object's memory, which readers see meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable

from hoplite_ray.errors import HopliteError
from hoplite_ray.streams.safetensors import SafetensorsFile
from hoplite_ray.values.codec import Encoded

_CHUNK_BYTES = 4 << 20  # of one read; readers hear of each: smaller ones cost more system calls


def read_small(source: SafetensorsFile) -> Encoded:
    """Return the value of a small file. Raises: as `read_into`."""
    memory = memoryview(bytearray(source.layout.size_bytes))
    read_into(source, memory, lambda upto_bytes: None)
    return Encoded(source.layout, [memory])


def read_into(source: SafetensorsFile, memory: memoryview, report: Callable[[int], None]) -> None:
    """Read all of a file into the memory of its object.

    Args:    memory: of the whole object, writable.
             report: called after each read with the number of leading bytes that are written.
    Raises:  HopliteError naming the file if it can't be read, or has become shorter; what `report`
             raises.
    """
    head = source.layout.head
    memory[: len(head)] = head
    descriptor = source.file.fileno()
    for run in source.runs:
        done = 0
        while done < run.size_bytes:
            start = run.in_object + done
            chunk = memory[start : start + min(_CHUNK_BYTES, run.size_bytes - done)]
            try:
                count = os.preadv(descriptor, [chunk], run.in_file + done)
            except OSError as error:
                raise HopliteError(
                    f"{source.path} can't be read at byte {run.in_file + done}: "
                    f"{error.strerror}; look at the file system, and open it again"
                ) from error
            if count == 0:
                raise HopliteError(
                    f"{source.path} ends at byte {run.in_file + done}, because it was cut off "
                    "while it was read; write the file under another name, and then rename it"
                )
            done += count
            report(start + count)
