"""The files that put Driftline on a machine: what they run exists, and they run the Kafka that the tests ran."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from support.kafka_brokers import version

from service.cli.main import application
from service.setup.settings import PREFIX, Settings

ROOT = Path(__file__).parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
DEPLOYING = (ROOT / "docs" / "deploying.md").read_text("utf-8")
OURS = [name for name, service in SERVICES.items() if "build" in service]


def options_of(words: list[str]) -> set[str]:
    """The options of the command that these words begin with; KeyError when there is none."""
    command = typer.main.get_command(application())
    for word in words:
        members = getattr(command, "commands", None)
        if members is None:
            break
        command = members[word]
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("name", OURS)
def test_a_service_runs_a_command_that_exists(name: str) -> None:
    """A container that cannot read its command line is started again for ever."""
    words = SERVICES[name]["command"]

    assert {word for word in words if word.startswith("--")} <= options_of(words)


def test_compose_runs_the_kafka_of_the_tests() -> None:
    """What was shown on one version says nothing of another."""
    assert f"apache/kafka:{version()}" == SERVICES["kafka"]["image"]


def test_settings_of_compose_and_image_exist() -> None:
    """A setting with a mistyped name is ignored."""
    files = DOCKERFILE + (ROOT / "docker-compose.yml").read_text("utf-8") + DEPLOYING
    named = set(re.findall(rf"\b{PREFIX}[A-Z_]*[A-Z]\b", files))

    assert named
    assert named - {f"{PREFIX}{name.upper()}" for name in Settings.__struct_fields__} == set()


def test_nothing_is_reachable_from_other_machines() -> None:
    """The broker asks for no password, and the server speaks no TLS."""
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]

    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def test_services_wait_for_the_topics() -> None:
    """A worker that starts before its topics are there ends at once."""
    waiting = {name: SERVICES[name]["depends_on"] for name in OURS if name != "topics"}

    assert {*waiting} == {"worker", "serve"}
    assert all(given == {"topics": {"condition": "service_completed_successfully"}} for given in waiting.values())


def test_every_volume_is_declared_and_used() -> None:
    """Data in a volume that nobody declared goes with its container."""
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())}

    assert used == {*COMPOSE["volumes"]}


def test_the_image_runs_as_nobody_special() -> None:
    """A hole in a parser should not open the machine."""
    users = re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)

    assert users
    assert "root" not in users
    assert "0" not in users


def test_the_image_has_what_the_wheel_is_built_from() -> None:
    """What .dockerignore keeps out is missing only at run time."""
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    packages = {"schemas", "audit", "analytics", "streams", "service"}

    assert let_in == {name for names in copied for name in names.split()}
    assert packages <= let_in
    assert all((ROOT / name).exists() for name in let_in)
