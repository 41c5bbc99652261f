"""`driftline alerts`, and the settings that name channels."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.alerting import ROUTING_KEY
from support.on_call import PagerDuty
from support.receivers import Answer, Receiver

from analytics.store.store import Outbox, Store
from schemas.errors import SettingsError
from schemas.records import Alert
from service.setup.settings import load_settings

Command = Callable[..., tuple[int, str, str]]
AT = datetime(2026, 10, 1, 9, 0, tzinfo=UTC)


@pytest.fixture
def channel_settings(driftline: Command, receiver: Receiver, other: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set both channels, and no other settings of the machine."""
    del driftline
    monkeypatch.setenv("DRIFTLINE_ALERT_WEBHOOK", receiver.url)
    monkeypatch.setenv("DRIFTLINE_ALERT_SECRET", "a secret of the receiver")
    monkeypatch.setenv("DRIFTLINE_ALERT_SLACK", other.url)


@pytest.fixture
def alert_database(tmp_path: Path) -> None:
    """Return a database with a delivered and a pending alert."""
    with Store(tmp_path / "driftline.duckdb") as store:
        values = {"kind": "incident", "subject_id": "i1", "severity": "critical", "body": "{}", "created_at": AT}
        common = {"project": "ops", "not_before": AT, "attempts": 2}
        delivered = Alert(alert_id="a", channel="slack", status="delivered", settled_at=AT, **values, **common)  # type: ignore[arg-type]
        waits = Alert(alert_id="b", channel="webhook", status="waiting", last_error="the answer was 503", **values, **common)  # type: ignore[arg-type]
        Outbox(store).put([delivered, waits])


@pytest.mark.usefixtures("channel_settings")
def test_a_test_alert_reaches_every_channel(driftline: Command, receiver: Receiver, other: Receiver) -> None:
    """Users check an address before the first incident."""
    assert driftline("alerts", "test")[:2] == (0, "webhook: delivered\nslack: delivered\n")
    assert receiver.posts[0].document["kind"] == "test"
    assert "driftline-signature" in receiver.posts[0].headers
    assert "This is a test" in other.posts[0].body.decode()


@pytest.mark.usefixtures("channel_settings")
def test_a_failed_test_alert_gives_the_reason(driftline: Command, other: Receiver) -> None:
    """The exit code reports the failure after one try, without retries."""
    other.answers = [Answer(403, body=b"invalid_token")]
    code, out, _ = driftline("alerts", "test")
    assert code == 1
    assert "webhook: delivered" in out
    assert "403: invalid_token" in out
    assert len(other.posts) == 1


@pytest.mark.usefixtures("channel_settings")
def test_a_test_alert_can_be_printed_as_json(driftline: Command, receiver: Receiver) -> None:
    """Scripts read the result."""
    receiver.answers = [Answer(500)]
    code, out, _ = driftline("alerts", "test", "--json")
    first, second = map(json.loads, out.splitlines())
    assert code == 1
    assert first == {"receiver": "webhook", "delivered": False, "error": "the answer was 500"}
    assert second == {"receiver": "slack", "delivered": True, "error": None}


@pytest.mark.usefixtures("channel_settings")
def test_the_log_of_a_test_alert_contains_no_address(driftline: Command, caplog: pytest.LogCaptureFixture) -> None:
    """The HTTP library logs every address that it calls."""
    code, out, err = driftline("--verbose", "alerts", "test")
    assert code == 0
    assert "hush" not in out + err + caplog.text


def test_a_receiver_of_the_file_is_tested_by_name(
    driftline: Command, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Testing one receiver calls nobody else, and a test opens no alert that stays open."""
    service = receiver.api = PagerDuty()
    path = tmp_path / "receivers.yaml"
    entry = f"{{type: pagerduty, keyEnv: PAGER_KEY, baseUrl: '{receiver.base_url}'}}"
    path.write_text(f"version: 1\nreceivers: {{oncall: {entry}, other: {entry}}}\n")
    monkeypatch.setenv("DRIFTLINE_ALERT_RECEIVERS", str(path))
    monkeypatch.setenv("PAGER_KEY", ROUTING_KEY)
    assert driftline("alerts", "test", "oncall")[:2] == (0, "oncall: delivered\n")
    assert (len(service.opened), service.open) == (1, {})
    code, _, err = driftline("alerts", "test", "on-call")
    assert (code, "oncall, other" in err) == (2, True)
    path.write_text("version: 1\nreceivers: {oncall: {type: pagerduty}}\n")
    code, _, err = driftline("alerts", "test")
    assert (code, f"{path}:2: receivers.oncall.keyEnv: is required" in err.replace("\n", "")) == (2, True)


def test_a_test_alert_without_channels_says_what_to_set(driftline: Command) -> None:
    """Silence would look like success."""
    code, _, err = driftline("alerts", "test")
    assert code == 2
    assert "DRIFTLINE_ALERT_SLACK" in err


@pytest.mark.usefixtures("alert_database")
def test_alerts_are_listed_newest_first(driftline: Command) -> None:
    """The list shows why an alert was not delivered."""
    code, out, _ = driftline("alerts", "list")
    lines = out.splitlines()
    assert code == 0
    assert len(lines) == 4
    assert [word for word in ("webhook", "waiting", "the answer was 503") if word in lines[2]] == [
        "webhook",
        "waiting",
        "the answer was 503",
    ]
    code, out, _ = driftline("alerts", "list", "--status", "delivered", "--json")
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["a"]
    assert "body" not in json.loads(out)


@pytest.mark.usefixtures("alert_database")
def test_an_unknown_status_is_refused(driftline: Command) -> None:
    """A typo must not look like an empty list."""
    code, _, err = driftline("alerts", "list", "--status", "sent")
    assert code == 2
    assert "waiting, delivered, given_up" in err


def test_a_list_without_a_database_is_an_error(driftline: Command) -> None:
    """The command must not create a database."""
    code, _, err = driftline("alerts", "list")
    assert code == 2
    assert "there is no database" in err


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ALERT_WEBHOOK", "hooks.example/hush", "begins with https://"),
        ("ALERT_SLACK", "file:///hush", "begins with https://"),
        ("ALERT_SLACK", "https://hooks example/hush", "begins with https://"),
        ("ALERT_SECRET", "hush", "must have 16 or more characters"),
        ("QUIET_HOURS", "ten to seven", "like 22:00-07:00"),
        ("QUIET_FOR", "nobody", "'all' or 'warning'"),
        ("PUBLIC_URL", "audit.example", "must be an address such as"),
        ("PUBLIC_URL", "https://audit.example/|x>", "must be an address such as"),
    ],
)
def test_an_invalid_setting_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str) -> None:
    """It is refused at the start instead of at the first incident, and a secret in the wrong place is not repeated."""
    monkeypatch.setenv(f"DRIFTLINE_{name}", value)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert f"DRIFTLINE_{name}" in str(refused.value)
    assert words in str(refused.value)
    assert "Value error" not in str(refused.value)
    assert "hush" not in str(refused.value)
