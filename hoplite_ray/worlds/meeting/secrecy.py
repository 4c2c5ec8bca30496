"""Secrecy: whether connections to other machines must be encrypted, and the TLS files for that.

An edge in shared memory is never encrypted. Where data_tls is on, every connection to another
machine begins with TLS.
"""

from __future__ import annotations

from hoplite_ray._native import TlsContext
from hoplite_ray.config import Config
from hoplite_ray.worlds.meeting.rendezvous import is_ray_running


class Secrecy:
    """The answer to whether to encrypt, asked for once, and the TLS files, read at each call."""

    def __init__(self) -> None:
        self._is_on: bool | None = None

    def context(self) -> TlsContext | None:
        """Return the TLS context for other machines; None where data_tls is off. Waits for Ray.

        Raises:  ControlError if Ray's GCS does not answer; or one that names the variable that is
                 missing, or the file that can't be used.
        """
        if self._is_on is None:
            self._is_on = needs_encryption()
        if not self._is_on:
            return None
        from hoplite_ray.control.tls import Tls  # late, because it imports gRPC

        return TlsContext(*Tls.for_data().as_text())


def needs_encryption() -> bool:
    """Return True if data_tls is on, by this environment or by Ray's cluster.

    Raises:  ControlError if Ray's GCS does not answer.
    """
    if Config.from_environment().data_tls == "on":
        return True
    if not is_ray_running():
        return False
    from hoplite_ray.plugin.node import agreement
    from hoplite_ray.plugin.process import job_options
    from hoplite_ray.plugin.seams import core as seams

    return not seams.is_client() and agreement.has_data_tls(job_options.requested_config())
