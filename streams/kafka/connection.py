"""Connection to the cluster: a single value, and the options that each client library takes."""

from __future__ import annotations

import random
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from schemas.errors import SettingsError

METADATA_MILLISECONDS = 5_000
"""Milliseconds for which a client trusts its metadata. After a change of leader, aiokafka may ask the old leader for this long."""
REQUEST_MILLISECONDS = 15_000
"""Milliseconds that a client waits for the answer of a node, which may be frozen, before it tries another."""
SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@dataclass(frozen=True)
class KafkaConnection:
    """A Kafka cluster, and the prefix of all our topics there. Its repr does not show the password."""

    bootstrap: str
    """Addresses, `host:port`, separated by commas; a single broker that answers is enough to find the others."""
    prefix: str = ""
    security_protocol: SecurityProtocol = "PLAINTEXT"
    sasl_mechanism: SaslMechanism | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    """CA certificates (PEM) for checking the brokers' certificates; None means those of the system."""
    text_secret: bytes | None = field(default=None, repr=False)
    """The secret from which the keys of texts are derived (`streams.kafka.encryption`); None means that texts are not encrypted."""

    @property
    def servers(self) -> list[str]:
        """The addresses as a list."""
        return [address.strip() for address in self.bootstrap.split(",")]

    @property
    def uses_tls(self) -> bool:
        """True if the connection is encrypted."""
        return self.security_protocol in {"SSL", "SASL_SSL"}

    @property
    def uses_sasl(self) -> bool:
        """True if we authenticate with a name and a password."""
        return self.security_protocol in {"SASL_PLAINTEXT", "SASL_SSL"}

    def topic(self, name: str) -> str:
        """Return the name of our topic on the cluster."""
        return self.prefix + name

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context, which checks a broker's certificate and host name; None without TLS.

        Raises SettingsError if the CA file cannot be used.
        """
        if not self.uses_tls:
            return None
        try:
            return ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
        except OSError as error:
            raise SettingsError(
                f"DRIFTLINE_KAFKA_CA: {self.ca_file} holds no certificates that can be read: {error}",
                hint="Name a readable file with the certificates of the authority in PEM.",
            ) from error

    def for_aiokafka(self) -> dict[str, Any]:
        """Return the options that aiokafka's consumers and producers take.

        The addresses are shuffled each time: a client tries them in order, and the first broker may be frozen.
        """
        return {
            "bootstrap_servers": random.sample(self.servers, len(self.servers)),
            "metadata_max_age_ms": METADATA_MILLISECONDS,
            "request_timeout_ms": REQUEST_MILLISECONDS,
        } | self._security()

    def for_kafka_python(self) -> dict[str, Any]:
        """Return the options that kafka-python's clients take."""
        return {"bootstrap_servers": self.servers} | self._security()

    def _security(self) -> dict[str, Any]:
        """Return the options that have the same names in both libraries, which share their origin."""
        options: dict[str, Any] = {"security_protocol": self.security_protocol}
        if self.uses_tls:
            options["ssl_context"] = self.ssl_context()
        if self.uses_sasl:
            options |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.username,
                "sasl_plain_password": self.password,
            }
        return options
