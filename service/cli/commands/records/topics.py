"""`driftline topics`: create the topics on Kafka, show them, check their configuration."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from service.cli.commands.options import AsJson, print_json, settings_of
from service.cli.terminal import counted, err, out, plain, table
from service.kafka import connection_of
from service.settings import Settings
from streams.kafka.topics import DEFAULT_PARTITIONS, REPLICATION, TOPICS

if TYPE_CHECKING:
    from streams.kafka.administration import Mismatch, TopicAdministration

topics_app = typer.Typer(no_args_is_help=True, help="The topics on Kafka: create, describe, check.")

Kafka = Annotated[
    str | None, typer.Option("--kafka", metavar="HOST:PORT", help="Addresses of the Kafka cluster [DRIFTLINE_KAFKA].")
]
Partitions = Annotated[
    int | None,
    typer.Option(
        "--partitions",
        metavar="N",
        min=1,
        max=10_000,
        help=f"Partitions of the topics keyed by session [the present number, or {DEFAULT_PARTITIONS}].",
    ),
]
_SHOWN = ("cleanup.policy", "retention.ms", "max.message.bytes", "message.timestamp.type", "min.insync.replicas")


@topics_app.command("create")
def create(
    kafka: Kafka = None,
    partitions: Partitions = None,
    replication: Annotated[
        int | None,
        typer.Option(
            "--replication",
            metavar="N",
            min=1,
            max=100,
            help=f"Copies of each partition [{REPLICATION}, or the number of brokers].",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create missing topics; existing ones are not changed. Exit 1 if one of those is misconfigured."""
    with administration_of(settings_of(kafka=kafka)) as administration:
        made = administration.create(partitions, replication)
        mismatches = administration.check(partitions)
    if as_json:
        print_json({"created": made, "mismatches": [found._asdict() for found in mismatches]})
    else:
        for name in made:
            out.print(f"created {name}", markup=False)
        out.print(f"{counted(len(made), 'topic')} created, {len(TOPICS) - len(made)} existed already")
    _report(mismatches, as_json=as_json)


@topics_app.command("describe")
def describe(kafka: Kafka = None, as_json: AsJson = False) -> None:
    """Show the topics of the cluster."""
    with administration_of(settings_of(kafka=kafka)) as administration:
        found = administration.describe()
    rows = [
        {
            "topic": name,
            "holds": TOPICS[name].holds,
            "partitions": state.partitions,
            "replication": state.replication,
            "config": {key: state.config.get(key) for key in sorted({*_SHOWN, *TOPICS[name].config})},
        }
        for name, state in found.items()
    ]
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        out.print(_table(rows))
    else:
        err.print("no topics yet (driftline topics create)")


@topics_app.command("check")
def check(kafka: Kafka = None, partitions: Partitions = None, as_json: AsJson = False) -> None:
    """Check for missing or misconfigured topics; exit 1 if there is one. Nothing is changed."""
    with administration_of(settings_of(kafka=kafka)) as administration:
        mismatches = administration.check(partitions)
    if as_json:
        for found in mismatches:
            print_json(found._asdict())
    elif not mismatches:
        out.print(f"{counted(len(TOPICS), 'topic')}: all are as they should be")
    _report(mismatches, as_json=as_json)


def administration_of(settings: Settings) -> TopicAdministration:
    """Return the topics of the cluster that the settings name; SettingsError without one, BrokerError if it does not answer."""
    from streams.kafka.administration import TopicAdministration  # noqa: PLC0415 - its library is loaded only where it is used

    if not logging.getLogger().isEnabledFor(logging.INFO):
        # The library logs every attempt as an error; what comes of them all is said at the end.
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
    return TopicAdministration(connection_of(settings))


def _report(mismatches: Sequence[Mismatch], *, as_json: bool) -> None:
    """Print the faults, unless they were printed as JSON, and exit accordingly."""
    for advice, alike in itertools.groupby(() if as_json else mismatches, key=lambda found: found.advice):
        for found in alike:
            err.say(plain(f"{found.topic} {found.what}", 400), style="red")
        err.say(f"    → {advice}")
    if mismatches:
        raise typer.Exit(1)


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    headers = ("topic", "holds", "partitions", "copies", "kept", "largest")
    cells = (
        (row["topic"], row["holds"], row["partitions"], row["replication"], _kept(row["config"]), _mebibytes(row["config"]))
        for row in rows
    )
    return table(headers, cells, right=("partitions", "copies", "largest"))


def _kept(config: dict[str, str | None]) -> str:
    """Say how long records are kept."""
    if "compact" in (config["cleanup.policy"] or ""):
        return "the last of a key"
    milliseconds = int(config["retention.ms"] or -1)
    return "for ever" if milliseconds < 0 else f"{milliseconds / 86_400_000:g} days"


def _mebibytes(config: dict[str, str | None]) -> str:
    return f"{int(config['max.message.bytes'] or 0) / 1024**2:g} MiB"
