"""`driftline topics`: create the topics on Kafka, show them, check their configuration."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.table import Table

from service.cli.commands.options import AsJson, Kafka, print_json, settings_of
from service.cli.exit_codes import fails_when, leave
from service.cli.terminal import err, out, table
from service.setup.kafka import collector_topics, connection_of
from service.setup.settings import Settings
from service.text.formats import counted, plain
from streams.kafka.topics import COLLECTOR, DEFAULT_PARTITIONS, REPLICATION, TOPICS

if TYPE_CHECKING:
    from streams.kafka.administration import Mismatch, TopicAdministration

topics_app = typer.Typer(no_args_is_help=True, help="Create, describe and check the topics on Kafka.")

Partitions = Annotated[
    int | None,
    typer.Option(
        "--partitions",
        metavar="N",
        min=1,
        max=10_000,
        help=f"Partitions of the topics keyed by session; by default their present number, or {DEFAULT_PARTITIONS}.",
    ),
]
_SHOWN_SETTINGS = ("cleanup.policy", "retention.ms", "max.message.bytes", "message.timestamp.type", "min.insync.replicas")


@topics_app.command("create")
@fails_when("an existing topic is misconfigured")
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
            help=f"Copies of each partition; by default {REPLICATION}, or the number of brokers if there are fewer.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create missing topics. Existing topics are not changed. An OpenTelemetry Collector creates its own topics."""
    with administration_of(settings_of(kafka=kafka)) as administration:
        created = administration.create(partitions, replication)
        mismatches = administration.check(partitions)
    if as_json:
        print_json({"created": created, "mismatches": [mismatch._asdict() for mismatch in mismatches]})
    else:
        for name in created:
            out.print(f"created {name}", markup=False)
        out.print(f"{counted(len(created), 'topic')} created, {len(TOPICS) - len(created)} existed already")
    _report_mismatches(mismatches, as_json=as_json)


@topics_app.command("describe")
def describe(kafka: Kafka = None, as_json: AsJson = False) -> None:
    """Show Driftline's topics, and the topics of an OpenTelemetry Collector that workers read."""
    settings = settings_of(kafka=kafka)
    with administration_of(settings) as administration:
        states = administration.describe()
        collector_rows = topics_of_collector(settings, administration)
    rows = [
        {
            "topic": name,
            "holds": TOPICS[name].holds,
            "partitions": state.partitions,
            "replication": state.replication,
            "config": {key: state.config.get(key) for key in sorted({*_SHOWN_SETTINGS, *TOPICS[name].config})},
        }
        for name, state in states.items()
    ] + [topic_row._asdict() for topic_row in collector_rows]
    if as_json:
        for row in rows:
            print_json(row)
        return
    if states:
        out.print(_table(rows[: len(states)]))
    else:
        err.say("no topics yet (driftline topics create)")
    for topic in collector_rows:
        out.say(f"Collector, {topic.signal}: {topic.describe()}")


@topics_app.command("check")
@fails_when("a topic is missing or misconfigured")
def check(kafka: Kafka = None, partitions: Partitions = None, as_json: AsJson = False) -> None:
    """Check for missing or misconfigured topics, and show the topics of an OpenTelemetry Collector. Nothing is changed."""
    settings = settings_of(kafka=kafka)
    with administration_of(settings) as administration:
        mismatches = administration.check(partitions)
        collector_rows = topics_of_collector(settings, administration)
    if as_json:
        for mismatch in mismatches:
            print_json(mismatch._asdict())
    elif not mismatches:
        out.print(f"{counted(len(TOPICS), 'topic')}: all are configured correctly")
    for topic in collector_rows:
        if not as_json and topic.partitions:
            out.say(f"Collector, {topic.signal}: {topic.describe()}")
    _report_mismatches(mismatches, as_json=as_json)


class CollectorTopic(NamedTuple):
    """A topic of an OpenTelemetry Collector, which the stage `collector` of a worker reads."""

    topic: str
    signal: str
    partitions: int
    """Number of partitions; 0 if the Collector has not created the topic yet."""
    unread: int | None
    """Messages that no worker has read yet; None if no worker has ever read the topic."""

    def describe(self) -> str:
        """Describe whether the topic exists and is read."""
        if not self.partitions:
            return f"there is no topic {self.topic}; workers read it once the Collector has created it"
        partitions = counted(self.partitions, "partition")
        if self.unread is None:
            return f"{self.topic}, {partitions}: nothing has been read yet (driftline worker --stages {COLLECTOR})"
        return f"{self.topic}, {partitions}, {counted(self.unread, 'message')} not read yet"


def topics_of_collector(settings: Settings, administration: TopicAdministration) -> list[CollectorTopic]:
    """Return the topics of an OpenTelemetry Collector, existing or not. BrokerError if the cluster does not answer."""
    topics = collector_topics(settings)
    partitions = administration.foreign(topics)
    unread = administration.unread(partitions)
    return [CollectorTopic(name, signal, partitions.get(name, 0), unread.get(name)) for name, signal in topics.items()]


def administration_of(settings: Settings) -> TopicAdministration:
    """Return the topics of the cluster in the settings; SettingsError without one, BrokerError if it does not answer."""
    from streams.kafka.administration import TopicAdministration  # noqa: PLC0415 - its library is loaded only where it is used

    if not logging.getLogger().isEnabledFor(logging.INFO):
        # The library logs every attempt as an error; we report the final result instead.
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
    return TopicAdministration(connection_of(settings))


def _report_mismatches(mismatches: Sequence[Mismatch], *, as_json: bool) -> None:
    """Print the mismatches, unless they were printed as JSON, and exit with the matching code."""
    for advice, group in itertools.groupby(() if as_json else mismatches, key=lambda mismatch: mismatch.advice):
        for mismatch in group:
            err.say(plain(f"{mismatch.topic} {mismatch.what}", 400), style="red")
        err.say(f"    → {advice}")
    leave(failed=bool(mismatches))


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    headers = ("topic", "holds", "partitions", "copies", "kept", "largest")
    cells = (
        (
            row["topic"],
            row["holds"],
            row["partitions"],
            row["replication"],
            _format_retention(row["config"]),
            _format_max_size(row["config"]),
        )
        for row in rows
    )
    return table(headers, cells, right=("partitions", "copies", "largest"))


def _format_retention(config: dict[str, str | None]) -> str:
    """Describe how long records are kept."""
    if "compact" in (config["cleanup.policy"] or ""):
        return "the last of each key"
    milliseconds = int(config["retention.ms"] or -1)
    return "forever" if milliseconds < 0 else f"{milliseconds / 86_400_000:g} days"


def _format_max_size(config: dict[str, str | None]) -> str:
    return f"{int(config['max.message.bytes'] or 0) / 1024**2:g} MiB"
