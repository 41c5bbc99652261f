"""`driftline rebuild` and `driftline policy check`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from audit.cost import ModelPrice
from audit.policy import ProjectPolicy, is_methodology, load_methodology, load_policy
from schemas.errors import SettingsError
from schemas.registry import current_schemas
from service.cli.commands.options import AsJson, Database, Kafka, PolicyFile, print_json, settings_of
from service.cli.progress import working
from service.cli.terminal import err, out, table
from service.setup.judge_setup import OTHERS, PRICE_IT, unpriced_note
from service.setup.kafka import connection_of, framing_of
from service.setup.server_link import STOP_IT
from service.setup.settings import Settings
from service.setup.wiring import embedded_runner
from service.setup.workspace import open_workspace
from service.text.plain import plain
from streams.topology import derived_tables

NO_COPY = (
    "Name the database with --db. If it is lost: with Kafka, give --kafka host:port to rebuild the tables from the topics; "
    "without Kafka it was the only copy: restore a backup or import the records again."
)
policy_app = typer.Typer(no_args_is_help=True, help="The policy that agents are judged by.")


def rebuild(
    kafka: Kafka = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete everything derived (scores, diagnoses, …) and compute it again from the stored input, by the present rules.

    With --kafka: delete the stored records that the topics still hold and read them from the topics again; records that retention removed
    from the topics are kept. Without a database, one is made from the topics.
    """
    settings = settings_of(database, policy, kafka=kafka)
    if settings.kafka is not None:
        counts = _land_again(settings)
        _say_counts("landed again", counts, "nothing: the topics are empty", as_json=as_json)
        return
    if not settings.database.exists():
        raise SettingsError(f"no database at {settings.database}: there is nothing to rebuild from", hint=NO_COPY)
    with open_workspace(settings, writes=True, alone=STOP_IT) as workspace:
        with working("computing everything derived again") as tell:
            runner = embedded_runner(settings, workspace.store, workspace.policy, workspace.redactor, workspace.now)
            runner.rebuild(lambda one: tell(f"stage {one.stage}: {one.position} of {one.end} records"))
        counts = {table: workspace.store.count(table) for table in derived_tables()}
    _say_counts("rebuilt", counts, "nothing", as_json=as_json)


def _say_counts(done: str, counts: Mapping[str, int], nothing: str, *, as_json: bool) -> None:
    """Print the number of rows per table."""
    if as_json:
        print_json({"rows": counts})
    else:
        out.say(f"{done}: {', '.join(f'{count} {table}' for table, count in counts.items()) or nothing}")


def _land_again(settings: Settings) -> dict[str, int]:
    """Flush the topics into the tables again; return the number of rows of each non-empty table."""
    from streams.kafka.rebuilding import rebuild as land_again  # noqa: PLC0415 - the clients of Kafka take a while to load
    from streams.kafka.rebuilding import require_records  # noqa: PLC0415 - as above

    connection, framing = connection_of(settings), framing_of(settings)
    is_new = not settings.database.exists()
    if is_new:  # an empty file in place of a lost one would look like a successful rebuild
        asyncio.run(require_records(connection))
    with open_workspace(settings, create=is_new, alone=STOP_IT) as workspace, working("landing the topics again") as tell:
        store, redactor = workspace.store, workspace.redactor
        asyncio.run(
            land_again(
                store,
                connection,
                redactor,
                workspace.now,
                report=lambda left: tell(f"{left} records are left"),
                reframe=None if framing is None else framing.reframe,
            )
        )
        store.checkpoint()
        tables = [schema.table for schema in current_schemas().values() if schema.topics]
        return {name: count for name in tables if (count := store.count(name))}


@policy_app.command("check")
def policy_check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Policy file or methodology file.")],
    as_json: AsJson = False,
) -> None:
    """Check a policy file and each methodology it names, or one methodology; show the settings in force per project."""
    document, shown, note = _methodology(file) if is_methodology(file) else _policy(file)
    if note:
        err.say(f"note: {note}. {PRICE_IT}", style="yellow")
    if as_json:
        print_json(document)
        return
    out.print(shown)
    out.print(f"{plain(file)} can be used", style="green")


def _methodology(file: Path) -> tuple[dict[str, Any], Table, str]:
    """Describe a methodology file as a document and as a table, without notes."""
    found = load_methodology(file)
    document = {"methodology": found.name, "version": found.version, "digest": found.digest}
    return document, table(list(document), [list(document.values())]), ""


def _policy(file: Path) -> tuple[dict[str, Any], Table, str]:
    """Describe the settings in force per project as a document and as a table, with notes on judges that cannot be asked."""
    policy = load_policy(file)
    document = {name or OTHERS: _in_force(policy.for_project(name)) for name in ["", *policy.projects]}
    headers = ["audit", "methodology", "sampling", "judge", "cap", "price", "digest"]
    shown = table(["project", *headers], [[name, *map(row.get, headers)] for name, row in document.items()])
    return document, shown, unpriced_note(policy)


def _in_force(found: ProjectPolicy) -> dict[str, Any]:
    """Return the settings of a project: in short, and in full."""
    sampling = found.settings.sampling
    return {
        "audit": "on" if found.settings.enabled else "off",
        "methodology": f"{found.methodology.name} {found.methodology.version}",
        "sampling": f"1 routine turn in {sampling.routine_interval}" if sampling.enabled else "everything",
        "judge": found.settings.judge_model,
        "cap": "none" if found.settings.cost_cap_per_session is None else f"{found.settings.cost_cap_per_session:g} USD",
        "price": _price(found.price),
        "digest": found.digest,
        "settings": found.settings.model_dump(by_alias=True),
    }


def _price(price: ModelPrice | None) -> str:
    """Return the price in USD per million tokens of input and of output."""
    return "not known" if price is None else f"{price.input:g} / {price.output:g} USD"
