"""The key-value store of Ray's GCS: a small table that all processes of a cluster share.

Written against Ray 2.60 and 2.61; tests/ray/test_seams.py tests it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import ray

from hoplite_ray.errors import ControlError

_NAMESPACE = b"hoplite_ray"


class KeyValues:
    """The cluster's small shared table, for any process that knows Ray's address.

    Every call raises ControlError if Ray's GCS does not answer within `timeout_s`.
    """

    def __init__(self, address: str, *, timeout_s: float = 30.0) -> None:
        self._address = address
        self._timeout_s = timeout_s

    def put_if_absent(self, key: str, value: bytes) -> bytes:
        """Store `value` unless the key has one, and return the stored one."""
        if self.add(key, value):
            return value
        stored = self.read(key)
        return value if stored is None else stored

    def add(self, key: str, value: bytes) -> bool:
        """Store `value` and return True; store nothing and return False if the key has a value."""
        return bool(self._call("put", key.encode(), value, False) == 1)

    def write(self, key: str, value: bytes) -> None:
        """Store `value` in place of any other."""
        self._call("put", key.encode(), value, True)

    def read(self, key: str) -> bytes | None:
        value = self._call("get", key.encode())
        return None if value is None else bytes(value)

    def read_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the value of each key, or None, all as they are at one moment.

        The GCS answers under one lock of its table; with Redis it sends one HMGET.
        REQUIRES: at most 1,000 keys, because more become several questions to Redis.
        """
        found = self._call("multi_get", [key.encode() for key in keys])
        values = ((found or {}).get(key.encode()) for key in keys)
        return [None if value is None else bytes(value) for value in values]

    def keys(self, prefix: str) -> list[str]:
        return [key.decode() for key in self._call("keys", prefix.encode())]

    def remove(self, key: str) -> None:
        self._call("del", key.encode(), False)

    def _call(self, verb: str, *arguments: Any) -> Any:
        try:
            call = getattr(self._client, f"internal_kv_{verb}")
            return call(*arguments, namespace=_NAMESPACE, timeout=self._timeout_s)
        except ray.exceptions.RayError as error:
            raise ControlError(
                f"Ray's key-value store at {self._address} does not answer ({error}); "
                "look at the machine of Ray's head node and the way to it"
            ) from error

    @cached_property
    def _client(self) -> Any:  # made at the first call, because it may wait for the GCS
        from ray._raylet import GcsClient  # type: ignore[attr-defined]

        return GcsClient(address=self._address)


class RayViewStore:
    """The view of the nodes in Ray's key-value store: one key per epoch, written once.

    Implements control's Table. Ray's table has put-if-absent and no compare-and-set, and a key per
    epoch turns the first into the second. The newest few epochs stay for slow readers.
    """

    _EPOCHS_KEPT = 8
    _TIMEOUT_S = 5.0  # of a call; beyond it the node says that it is cut off

    def __init__(self, address: str, *, prefix: str = "view") -> None:
        self._values = KeyValues(address, timeout_s=self._TIMEOUT_S)
        self._prefix = prefix

    def read(self) -> tuple[int, bytes]:
        """Return (epoch, value) of the newest view; (0, b"") if there is none."""
        for _ in range(100):
            epochs = self._epochs()
            if not epochs:
                return 0, b""
            value = self._values.read(self._key(epochs[-1]))
            if value is not None:  # else a writer has removed it: there is a newer one
                return epochs[-1], value
        raise ControlError("the view in Ray's key-value store changes faster than it can be read")

    def compare_and_set(self, epoch: int, value: bytes) -> bool:
        """Store `value` as `epoch`; return False if that epoch or a newer one is stored."""
        epochs = self._epochs()
        if epochs and epochs[-1] >= epoch:
            return False
        if not self._values.add(self._key(epoch), value):
            return False
        with suppress(ControlError):  # the value is stored; the next writer removes old ones
            for old in epochs[: -self._EPOCHS_KEPT]:
                self._values.remove(self._key(old))
        return True

    def _epochs(self) -> list[int]:
        names = [key.rpartition("/")[2] for key in self._values.keys(f"{self._prefix}/")]
        return sorted(int(each) for each in names if each.isdecimal())

    def _key(self, epoch: int) -> str:
        return f"{self._prefix}/{epoch:020d}"
