"""The error by which a handshake ends."""

from __future__ import annotations

from hoplite_ray.errors import WorldError


class RefusedError(WorldError):
    """The peer refuses, or is the wrong process. `reason` is a word for programs."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(reason, text)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.args[1])
