"""`driftline backup` and `driftline export`: copies of the database and of its tables, also beside a running server.

`driftline verify` checks exports without a database, and `driftline signing-key` prints the public key that they are signed with.
`driftline text-key` makes the key that encrypts texts on the topics.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from schemas.errors import InputError
from service.cli.commands.options import AsJson, Database, PolicyFile, Project, Since, print_json, settings_of, since_of
from service.cli.exit_codes import fails_when, leave
from service.cli.progress import growing, working
from service.cli.terminal import err, out
from service.export.backups import back_up, unfinished_size
from service.export.manifest import public_hex
from service.export.parquet import PARTITION_KEYS, export_partitions, export_tables, select_days
from service.export.verification import STATED_ERASURE, Verification, verify_folder
from service.read.known_projects import require_known
from service.setup.settings import Settings
from service.setup.signing_key import load_signing_key, signing_key_file
from service.setup.text_key import fingerprint_of, make_text_key
from service.setup.workspace import local_store, open_workspace, require_database
from service.text.formats import counted


def backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the copies; created if missing.")],
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Copy the database and its tokens to a folder, as a consistent snapshot. A server may be running.

    The copy contains everything that was accepted before the command. To restore it, stop the server, move away the database and all
    files whose names begin with its name, and copy the backup's files to that place. Replays are not copied; run them again.
    """
    settings = settings_of(database, policy)
    with (
        open_workspace(settings) as workspace,
        growing("copying the database", _size(settings), lambda: unfinished_size(folder)),
    ):
        made = back_up(workspace, folder)
    if as_json:
        print_json({"files": [str(path) for path in made.files], "rows": made.rows})
        return
    rows = ", ".join(counted(count, table.replace("_", " ").removesuffix("s")) for table, count in made.rows.items())
    out.say(f"copied to {', '.join(map(str, made.files))}: {rows or 'no records yet'}")


def _size(settings: Settings) -> int:
    """Return the expected bytes of the backup, if known; the copy has no free space, so it may be smaller."""
    return settings.database.stat().st_size if settings.database.exists() else 0


LastDay = Annotated[
    datetime | None, typer.Option("--until", metavar="DAY", formats=["%Y-%m-%d"], help="Only up to and including this UTC day.")
]


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the files; created if missing.")],
    by: Annotated[
        str | None, typer.Option(metavar="project,day", help="Write the latest revisions by project and day.")
    ] = None,
    project: Project = None,
    since: Since = None,
    until: LastDay = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Write every topic's table as a Parquet file, with all revisions, topic, partition and offset. Times are in UTC.

    A signed manifest beside the files shows later changes of files and records (`driftline verify`). Exports to the same folder continue it.

    With --by project,day, write only the latest revisions, as TABLE/project=…/day=…/*.parquet, by UTC day. --project, --since and
    --until need --by.
    """
    _check(by, selected=any(value is not None for value in (project, since, until)))
    start = since_of(since)
    days = select_days(start and start.date(), until and until.date())
    settings = settings_of(database)
    with open_workspace(settings) as workspace:
        require_known(workspace, project)
        key = load_signing_key(settings.database)
        with local_store(workspace) as store, working("exporting") as tell:
            if by is None:
                exported = export_tables(store, folder, key, tell)
            else:
                exported = export_partitions(store, folder, days.of_project(project), key, tell)
    changes = [
        {"table": table, "reason": reason, "records": count} for (table, reason), count in sorted(exported.removed.items())
    ]
    if as_json:
        signed = {"number": exported.number, "head": exported.head, "key": public_hex(key)}
        print_json({"folder": str(folder), "rows": exported.rows, **signed, "removed": changes})
        return
    total = sum(exported.rows.values())
    out.say(f"{counted(len(exported.rows), 'table')} with {counted(total, 'row')} written to {folder}")
    for change in changes:
        if change["reason"] == "unexplained":
            err.say(
                f"{change['table']}: {change['records']} records of earlier exports are gone without an erasure or retention"
            )
        else:
            out.say(f"{change['table']}: {change['records']} records of earlier exports gone or changed by {change['reason']}")
    out.say(f"export {exported.number}, head {exported.head}, signed with {public_hex(key)}")


@fails_when("something in the folder does not fit its manifest")
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of `driftline export`.")],
    key: Annotated[
        str | None, typer.Option(metavar="HEX", help="Public key that must have signed the exports (`driftline signing-key`).")
    ] = None,
    head: Annotated[
        str | None, typer.Option(metavar="HEX", help="Head of an earlier export, which the chain must contain.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that exports are as they were written: their chain, signatures, files and records. No database is needed.

    Names each file, topic, day and record that does not fit. Records that an erasure or retention removed are counted by reason.
    """
    for name, value in (("--key", key), ("--head", head)):
        if value is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", value):
            raise InputError(
                f"{name} {value}: must have 64 hexadecimal characters", hint="Copy it from the output of `driftline export`."
            )
    with working("verifying") as tell:
        result = verify_folder(folder, key, head, tell)
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "problems": result.problems,
                "head": result.head,
                "keys": result.keys,
                "exports": result.exports,
                "files": result.files,
                "records": result.records,
                "removed": dict(result.removed),
                "redacted": result.redacted,
                "uncoveredColumns": result.uncovered,
                "days": result.by_day,
            }
        )
    else:
        _print_verification(result, key, head)
    leave(failed=bool(result.problems))


def _print_verification(result: Verification, key: str | None, head: str | None) -> None:
    for problem in result.problems:
        err.say(problem)
    fits = f"{counted(result.records, 'record')} of {counted(result.days, 'day')} in {counted(len(result.topics), 'topic')}"
    out.say(f"{fits} verified, {counted(result.files, 'file')}, {counted(result.exports, 'export')}")
    for reason, count in sorted(result.removed.items()):
        out.say(f"{counted(count, 'record')} removed: {REMOVAL_MEANINGS[reason]}")
    if result.redacted:
        out.say(
            f"{counted(result.redacted, 'record')} redacted after a recorded erasure; what else was changed in them is not known"
        )
    for table, columns in result.uncovered.items():
        out.say(f"{table}: later columns of earlier records are not covered: {', '.join(columns)}")
    out.say(f"head {result.head}, signed with {', '.join(result.keys) or 'no key'}")
    if key is None:
        out.say("whose key this is was not checked: pass --key")
    if head is None:
        out.say(
            "whether this is the newest export, and whether the owner of the key wrote another history, was not checked: pass --head"
        )
    out.say("does not fit: " + counted(len(result.problems), "problem") if result.problems else "everything fits")


REMOVAL_MEANINGS = {
    "erasure": "a recorded erasure covers their session",
    STATED_ERASURE: "by a recorded erasure, as the exporter states: they name no session",
    "retention": "by retention, as the exporter states",
    "unexplained": "without an erasure or retention",
    "withdrawal": "scores of withdrawn exchanges, as the exporter states",
}


def signing_key(database: Database = None, as_json: AsJson = False) -> None:
    """Print the public key that signs the exports of a database. Creates the key if there is none.

    The private key is in a file beside the database that ends in .signing-key. Keep it secret, and back it up.
    """
    settings = settings_of(database)
    require_database(settings.database)
    key = public_hex(load_signing_key(settings.database))
    if as_json:
        print_json({"key": key, "file": str(signing_key_file(settings.database))})
    else:
        out.say(key)


def text_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File with the key; created if missing.")],
    as_json: AsJson = False,
) -> None:
    """Print the fingerprint of the key that encrypts texts on the topics. Creates the key if there is none.

    Give the file to every process of an installation with DRIFTLINE_TEXT_KEY_FILE. Keep it secret, and back it up: without it no encrypted
    record can be read.
    """
    fingerprint = fingerprint_of(make_text_key(file))
    if as_json:
        print_json({"fingerprint": fingerprint, "file": str(file)})
    else:
        out.say(fingerprint)


def _check(by: str | None, *, selected: bool) -> None:
    if by is not None and tuple(by.split(",")) != PARTITION_KEYS:
        raise InputError(f"--by {by}: must be project,day", hint="Use --by project,day.")
    if by is None and selected:
        raise InputError("--project, --since and --until need --by", hint="Add --by project,day, or leave them out.")
