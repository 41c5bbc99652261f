"""A mail server on loopback that encrypts, asks for a password, and keeps the mail that it gets."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, cast

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.processes import free_port

USER, PASSWORD = "alerts", "hush-hush-password"


class MailServer:
    """Keeps mail; a recipient that has a reply in `replies` is refused with it."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.replies: dict[str, str] = {}
        self.port = 0

    async def handle_RCPT(self, _server: Any, _session: Any, envelope: Envelope, address: str, _options: Any) -> str:  # noqa: N802 - the library calls it
        """Accept or refuse a recipient."""
        if address in self.replies:
            return self.replies[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: Any, session: Any, envelope: Envelope) -> str:  # noqa: N802 - as above
        """Keep a mail that came encrypted."""
        assert session.ssl is not None
        self.mails.append(cast("EmailMessage", message_from_bytes(cast("bytes", envelope.content), policy=policy.default)))
        return "250 OK"


@contextmanager
def mail_server(folder: Path) -> Iterator[tuple[MailServer, Path]]:
    """Yield a server for STARTTLS with a password, and the file of the certificate that it shows."""
    certificate, key = _make_certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = MailServer()

    def authenticate(_server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
        expected = LoginPassword(USER.encode(), PASSWORD.encode())
        return AuthResult(success=data == expected, handled=False)

    server.port = free_port()
    controller = Controller(
        server, hostname="127.0.0.1", port=server.port, tls_context=context, require_starttls=True, auth_required=True,
        authenticator=authenticate,
    )  # fmt: skip
    controller.start()
    try:
        yield server, certificate
    finally:
        controller.stop()


def _make_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate of 127.0.0.1 that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return paths
