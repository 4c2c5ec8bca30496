"""An authority made on the spot, and the variables that name the files of one whom it certified."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates for addresses."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, directory.name)])
        directory.mkdir()
        self._keep("authority.pem", self._sign(self._name, self._key, None))

    def certify(self, name: str, *addresses: str) -> dict[str, str]:
        """Return Ray's settings for one who is called by these addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.IPAddress(ip_address(address)) for address in addresses]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._keep(f"{name}.pem", self._sign(subject, key, x509.SubjectAlternativeName(names)))
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        self._keep(f"{name}.key", secret)
        return {
            "RAY_USE_TLS": "1",
            "RAY_TLS_SERVER_CERT": str(self._directory / f"{name}.pem"),
            "RAY_TLS_SERVER_KEY": str(self._directory / f"{name}.key"),
            "RAY_TLS_CA_CERT": str(self._directory / "authority.pem"),
        }

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        names: x509.SubjectAlternativeName | None,
    ) -> bytes:
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=names is None, path_length=None), critical=True)
        )
        if names is not None:
            certificate = certificate.add_extension(names, critical=False)
        return certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _keep(self, file: str, contents: bytes) -> None:
        (self._directory / file).write_bytes(contents)


def serial_of(settings: dict[str, str]) -> int:
    """The serial number of the certificate that the settings name."""
    file = Path(settings["RAY_TLS_SERVER_CERT"])
    return x509.load_pem_x509_certificate(file.read_bytes()).serial_number


def serial_shown(control: str, settings: dict[str, str]) -> int:
    """The serial number of the certificate that a node shows for its control calls."""
    address, _, port = control.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(settings["RAY_TLS_SERVER_CERT"], settings["RAY_TLS_SERVER_KEY"])
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((address, int(port)), timeout=20) as plain,
        context.wrap_socket(plain) as secure,
    ):
        shown = secure.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number
