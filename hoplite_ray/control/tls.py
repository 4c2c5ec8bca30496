"""Ray's TLS settings: RAY_USE_TLS and the three files it needs.

The control plane always obeys them; data connections do with the option data_tls.

Both ends of every call then show a certificate that RAY_TLS_CA_CERT has signed. A node's
certificate names the address at which the node is called. The same variables serve without Ray.
They are the only way to set TLS, so that a node, its callers and Ray can't disagree. They are read
when an incarnation of a node or a client begins: renewed files count from the next one on.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from hoplite_ray.errors import ControlError

_USE = "RAY_USE_TLS"
_FILES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


@dataclass(frozen=True, slots=True)
class Tls:
    """The contents of the three files, which fit together."""

    certificate: bytes
    key: bytes
    authority: bytes

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Tls | None:
        """Read the files that the environment names; None unless it asks for TLS, as Ray reads it.

        Raises:  ControlError naming the variable that is missing, or the file that is of no use.
        """
        environment = os.environ if environment is None else environment
        if environment.get(_USE, "0").lower() not in ("1", "true"):
            return None
        missing = [name for name in _FILES if not environment.get(name)]
        if missing:
            raise ControlError(
                f"{_USE} is set and {', '.join(missing)} is not; "
                "name the certificate, its key and the authority's certificate"
            )
        certificate, key, authority = (Path(environment[name]) for name in _FILES)
        return cls(*_read_files(certificate, key, authority))

    @classmethod
    def for_data(cls) -> Tls:
        """Read them for the option data_tls, which has no files of its own.

        Raises:  ControlError as above, and if the environment does not ask for TLS.
        """
        tls = cls.from_environment()
        if tls is None:
            raise ControlError(
                f"data_tls is on and {_USE} is not; set {_USE}=1 and {', '.join(_FILES)} "
                "on every node, or leave data_tls out"
            )
        return tls

    def as_text(self) -> tuple[str, str, str]:
        """Return certificate, key and authority as the native node takes them."""
        files = (self.certificate, self.key, self.authority)
        certificate, key, authority = (str(each, "utf-8", "replace") for each in files)
        return certificate, key, authority

    def node_credentials(self) -> grpc.ServerCredentials:
        """Return credentials that admit only callers with a certificate of the authority."""
        pairs = [(self.key, self.certificate)]
        return grpc.ssl_server_credentials(pairs, self.authority, require_client_auth=True)

    def caller_credentials(self) -> grpc.ChannelCredentials:
        """Return credentials that show this process's certificate and require the authority's."""
        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)


def is_certificate_failure(details: str) -> bool:
    """Return True if a call failed because this process refuses the node's certificate."""
    return "CERTIFICATE_VERIFY_FAILED" in details or "Hostname Verification" in details


def advice(details: str, tls: Tls | None) -> str:
    """Return the next step for a connection that failed by its TLS settings; else ""."""
    if is_certificate_failure(details):
        return f"; its certificate must name this address and be signed by our {_FILES[2]}"
    if "WRONG_VERSION_NUMBER" in details:
        return f"; it speaks no TLS, and {_USE} is set here: set it on the node as well"
    if "failed to connect" not in details or not _is_hang_up(details):
        return ""
    if tls is None:
        return f"; it hangs up on callers without TLS if {_USE} is set there: set it here as well"
    return f"; it hangs up on callers whose {_FILES[0]} its {_FILES[2]} has not signed"


def _is_hang_up(details: str) -> bool:
    return "Socket closed" in details or "Connection reset" in details


def _read_files(certificate: Path, key: Path, authority: Path) -> list[bytes]:
    """Return the files' contents after OpenSSL has accepted them; gRPC would only log an error."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        contents = [file.read_bytes() for file in (certificate, key, authority)]
        context.load_verify_locations(authority)
        context.load_cert_chain(certificate, key, password=lambda: "")  # never ask the terminal
    except OSError as error:  # ssl.SSLError is one
        raise ControlError(
            f"{_USE} is set, but certificate {certificate}, key {key} and authority {authority} "
            f"are of no use together ({error.strerror or error}); give PEM files that fit"
        ) from None
    return contents
