"""Whether what a process sends must be encrypted, and what with.

A world's edge in shared memory needs nothing, and every connection to another machine begins with
TLS then.
"""

from __future__ import annotations

from hoplite_ray._native import TlsContext
from hoplite_ray.config import Config
from hoplite_ray.worlds.meeting.rendezvous import ray_runs


class Secrecy:
    """Whether to encrypt, asked once, and what with: the files of Ray's TLS settings of now."""

    def __init__(self) -> None:
        self._is_on: bool | None = None

    def context(self) -> TlsContext | None:
        """Return what connections to other machines begin with; None where data_tls is off. Waits.

        Raises:  ControlError if Ray's GCS does not answer, or naming the variable that is missing
                 or the file that is of no use.
        """
        if self._is_on is None:
            self._is_on = needs_encryption()
        if not self._is_on:
            return None
        from hoplite_ray.control.tls import Tls  # which brings gRPC

        return TlsContext(*Tls.for_data().as_text())


def needs_encryption() -> bool:
    """Tell whether nodes encrypt what they send here: by this environment, or by Ray's cluster.

    Raises:  ControlError if Ray's GCS does not answer.
    """
    if Config.from_environment().data_tls == "on":
        return True
    if not ray_runs():
        return False
    from hoplite_ray.plugin import flag, seams, start

    return not seams.is_client() and start.has_data_tls(flag.asked())
