"""The transports' entries in Ray's table, and Ray's methods that this package replaces.

Every worker of a job with the flag imports this module, so it imports little.
"""

from __future__ import annotations

import sys
import threading

from ray.experimental import register_tensor_transport

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.plugin.seams import direct as direct_seams

NAMES = frozenset({"HOPLITE", "HOPLITE_NUMPY"})

_lock = threading.RLock()
_can_read = False
_has_joined = False


def enable_reading() -> None:
    """Let this process read values that the transports carry, on whatever way they come."""
    global _can_read
    with _lock:
        if not _can_read:
            direct_seams.make_readers_fetch(NAMES)
        _can_read = True


def register() -> None:
    """Add the transports to Ray's table: torch's where torch is."""
    global _has_joined
    if _has_joined:
        return
    with _lock:
        if _has_joined:
            return
        import numpy as np

        from hoplite_ray.plugin.direct import transport

        enable_reading()
        direct_seams.replace_pickling(NAMES, transport.begin_pickling, transport.stand_in)
        direct_seams.refuse_empty_puts(NAMES, _refuse)
        direct_seams.nest_pending(NAMES, transport.NOTHING)
        direct_seams.forget_failures(NAMES)
        register_tensor_transport("hoplite_numpy", ["cpu"], transport.NumpyTransport, np.ndarray)
        torch = sys.modules.get("torch")  # Ray has imported it for its own transports
        if torch is not None:
            register_tensor_transport("hoplite", ["cpu"], transport.TorchTransport, torch.Tensor)
        _has_joined = True


def _refuse(name: str) -> None:
    raise InvalidArgumentError(
        f'no array in this value is one that "{name.lower()}" carries: "hoplite" carries torch '
        'tensors, "hoplite_numpy" numpy arrays; put it without _tensor_transport'
    )
