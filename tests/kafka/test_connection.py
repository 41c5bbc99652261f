"""The connection: valid settings, the options of the libraries, and the secrecy of the password."""

from __future__ import annotations

import asyncio
import gc
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from support.kafka_brokers import Broker, Found, quick
from support.processes import free_port, skip_or_fail

from schemas.errors import SettingsError
from service.setup.kafka import connection_of
from service.setup.settings import load_settings
from streams.kafka.administration import TopicAdministration
from streams.kafka.connection import KafkaConnection

PASSWORD = "correct-horse"
SECURE = """
listeners=PLAINTEXT://127.0.0.1:{{port}},SECURE://127.0.0.1:{secure},CONTROLLER://127.0.0.1:{{controller}}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SECURE://127.0.0.1:{secure}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL
listener.name.secure.sasl.enabled.mechanisms=PLAIN
listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_fleet="{password}";
ssl.keystore.type=PKCS12
ssl.keystore.location={store}
ssl.keystore.password=changeit
"""


def settings(**given: object) -> KafkaConnection:
    """Return the connection for these settings."""
    return connection_of(load_settings(**given))


@pytest.fixture(scope="module")
def secure(any_broker: Found, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaConnection]:
    """Return the connection to a broker with TLS and password login."""
    if any_broker.kind != "java":
        skip_or_fail("a broker with TLS is started with Java and Maven: install them")
    folder = tmp_path_factory.mktemp("secure")
    store, ca_file, port = folder / "broker.p12", folder / "ca.pem", free_port()
    about = ["-alias", "broker", "-keystore", str(store), "-storetype", "PKCS12", "-storepass", "changeit"]
    key = ["-genkeypair", "-keyalg", "EC", "-dname", "CN=broker", "-ext", "SAN=ip:127.0.0.1", "-ext", "bc:critical=ca:true"]
    for task in (key, ["-exportcert", "-rfc", "-file", str(ca_file)]):
        subprocess.run([shutil.which("keytool") or "keytool", *task, *about], check=True, capture_output=True, timeout=300)
    more = SECURE.format(secure=port, password=PASSWORD, store=store)
    broker = Broker(folder / "kafka", options=quick(), properties=more)
    broker.start()
    yield KafkaConnection(f"127.0.0.1:{port}", "", "SASL_SSL", "PLAIN", "fleet", PASSWORD, ca_file)
    broker.kill()


# aiokafka does not wait for a connection to close that was refused; what it says of it is collected here and not by a later test.
refused = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


async def reach(connection: KafkaConnection) -> bool:
    """Return whether aiokafka's producer can connect to the broker."""
    producer = AIOKafkaProducer(**connection.for_aiokafka())
    try:
        await producer.start()
    except KafkaError:
        return False
    finally:
        await producer.stop()
    return True


def test_both_libraries_log_in_over_tls(secure: KafkaConnection) -> None:
    """Managed clusters require this, and each library has its own option names."""
    with TopicAdministration(secure) as administration:
        assert administration.describe() == {}
    assert asyncio.run(reach(secure))


@refused
def test_an_untrusted_certificate_is_refused(secure: KafkaConnection) -> None:
    """Otherwise an attacker could intercept records and passwords."""
    reached = asyncio.run(reach(replace(secure, ca_file=None)))
    gc.collect()

    assert not reached


@refused
def test_a_wrong_password_is_refused(secure: KafkaConnection) -> None:
    """This proves that the test above really logs in."""
    reached = asyncio.run(reach(replace(secure, password="wrong")))
    gc.collect()

    assert not reached


def test_a_connection_hides_its_password() -> None:
    """The repr may appear in logs and error messages."""
    connection = KafkaConnection("broker:9093", "", "SASL_SSL", "PLAIN", "fleet", PASSWORD)

    assert PASSWORD not in repr(connection)
    assert connection.for_aiokafka()["sasl_plain_password"] == PASSWORD


def test_the_settings_define_the_connection(tmp_path: Path) -> None:
    """Each variable sets one field."""
    login = {"kafka_mechanism": "SCRAM-SHA-512", "kafka_username": "fleet", "kafka_password": PASSWORD}
    values = {"kafka": "a:9093, b:9093", "kafka_prefix": "eu.", "kafka_security": "SASL_SSL", "kafka_ca": tmp_path / "ca.pem"}

    expected = KafkaConnection("a:9093, b:9093", "eu.", "SASL_SSL", "SCRAM-SHA-512", "fleet", PASSWORD, tmp_path / "ca.pem")
    assert settings(**values, **login) == expected
    assert expected.servers == ["a:9093", "b:9093"]
    assert expected.topic("scores") == "eu.scores"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "DRIFTLINE_KAFKA: "),
        ({"kafka": "kafka://broker:9092"}, "DRIFTLINE_KAFKA: "),
        ({"kafka": "broker"}, "DRIFTLINE_KAFKA: "),
        ({"kafka": "broker:99999"}, "DRIFTLINE_KAFKA: "),
        ({"kafka": "broker:9092", "kafka_security": "TLS"}, "DRIFTLINE_KAFKA_SECURITY: "),
        ({"kafka": "broker:9092", "kafka_security": "SASL_SSL"}, "DRIFTLINE_KAFKA_MECHANISM: "),
        ({"kafka": "broker:9092", "kafka_password": PASSWORD}, "DRIFTLINE_KAFKA_PASSWORD: "),
        ({"kafka": "broker:9092", "kafka_ca": "ca.pem"}, "DRIFTLINE_KAFKA_CA: "),
        ({"kafka": "broker:9092", "kafka_prefix": "a/b"}, "DRIFTLINE_KAFKA_PREFIX: "),
        ({"kafka": "broker:9092", "schema_registry": "https://me:secret@registry"}, "DRIFTLINE_SCHEMA_REGISTRY: "),
    ],
)
def test_contradictory_settings_are_named(given: dict[str, object], message: str) -> None:
    """A password that is never sent, or certificates that are never checked, are startup errors."""
    with pytest.raises(SettingsError) as refused:
        settings(**given)

    assert message in str(refused.value)
    assert PASSWORD not in str(refused.value)


def test_unreadable_certificates_are_named(tmp_path: Path) -> None:
    """The library's own error would not name the setting."""
    missing = settings(kafka="broker:9093", kafka_security="SSL", kafka_ca=tmp_path / "ca.pem")

    with pytest.raises(SettingsError, match="DRIFTLINE_KAFKA_CA"):
        missing.for_aiokafka()
