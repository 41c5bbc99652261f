"""Settings from the environment: what is taken, and the words for what is not."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from schemas.errors import SettingsError
from service.setup.settings import PREFIX, Key, Secret, SecretAddress, Settings, load_settings

HOOK = "https://hooks.example/T0/very-secret"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("judge", "maybe", "must be 'auto', 'live' or 'none'"),
        ("kafka_mechanism", "MD5", "must be 'PLAIN', 'SCRAM-SHA-256' or 'SCRAM-SHA-512'"),
        ("judge_concurrency", "0", "must be 1 or more"),
        ("judge_concurrency", "1.5", "must be a whole number"),
        ("judge_deadline", "0", "must be more than 0"),
        ("judge_deadline", "inf", "must be 3600 or less"),
        ("stop_grace", "soon", "must be a number"),
        ("port", "70000", "must be 65535 or less"),
        ("redaction_key", "short", "must have 16 or more characters"),
        ("connection", "A b", "must be 1 to 63 of a-z, 0-9"),
        ("project", "anchors", "the name is reserved for anchors"),
        ("kafka_username", "", "must have 1 or more characters"),
        ("kafka_password", "", "must have 1 or more characters"),
        ("kafka_prefix", "a b", "must be of the form ^[A-Za-z0-9._-]{0,100}$"),
        ("public_url", "ftp://x", "must be an address such as https://host/path"),
        ("alert_slack", "hooks.example/very-secret", "must be an address "),
        ("quiet_hours", "25:00-26:00", "must be two times of the day"),
        ("otlp_explanations", "perhaps", "must be true or false"),
    ],
)
def test_an_invalid_value_is_reported_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    """The user needs the name; the value may be a secret in the wrong place."""
    monkeypatch.setenv(f"{PREFIX}{name.upper()}", value)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert str(refused.value).startswith(f"{PREFIX}{name.upper()}: {words}")
    assert "very-secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("database", "fleet.duckdb", Path("fleet.duckdb")),
        ("judge_deadline", "5", 5.0),
        ("otlp_grpc_port", "0", 0),
        ("otlp_explanations", "Yes", True),
        ("otlp_explanations", "TRUE", True),
        ("otlp_explanations", "off", False),
        ("kafka_otlp_logs", "", ""),
        ("alert_webhook", HOOK, SecretAddress(HOOK)),
    ],
)
def test_a_variable_is_converted_to_its_type(monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: object) -> None:
    """Variables are texts that mean a path, a number, a switch or a secret. Their names may be in lower case."""
    monkeypatch.setenv(f"{PREFIX}{name}".lower(), value)
    assert getattr(load_settings(), name) == expected


def test_a_command_option_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an option the variable applies, and without both the default."""
    monkeypatch.setenv("DRIFTLINE_PROJECT", "shop")
    assert load_settings(project="ops").project == "ops"
    assert load_settings(project=None).project == "shop"
    assert load_settings().connection == Settings().connection


def test_a_secret_is_hidden_by_its_holder() -> None:
    """Settings end up in logs and errors, so revealing a secret needs an explicit call."""
    settings = Settings(redaction_key=Key("k" * 16), alert_webhook=SecretAddress(HOOK), kafka_password=Secret("password1"))
    printed = f"{settings!r} {settings.kafka_password} {copy.copy(settings)}"
    assert not [one for one in ("kkkk", HOOK, "password1") if one in printed]
    assert (settings.kafka_password or Secret("-")).reveal() == "password1"
