"""`driftline connections` and `driftline operators`: who delivers records, who reads and decides, and their tokens."""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.table import Table

from schemas.errors import InputError
from service.cli.commands.options import AsJson, Database, OfProject, Project, print_json, settings_of, show_rows
from service.cli.terminal import err, out, table
from service.read.access import ConnectionAccess, IssuedToken, OperatorAccess, connections, operators
from service.setup.access import MARK, SCOPES, AccessStore, Holder, Kind, Token, Write, access_file, scopes_of
from service.setup.workspace import utc_now
from service.text.answers import document
from service.text.formats import MISSING, counted

connections_app = typer.Typer(no_args_is_help=True, help="Manage connections, which send records, and their tokens.")
operators_app = typer.Typer(no_args_is_help=True, help="Manage operators, who read and decide, and their tokens.")

Holding = ConnectionAccess | OperatorAccess
SHOWN_LENGTH = 64
"""Characters of a typed name that are kept."""
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of at most 63 characters: a-z, 0-9, _ . -")]
Lasts = Annotated[
    int | None, typer.Option("--expires", metavar="DAYS", min=1, max=3650, help="Days after which the token expires.")
]
Grace = Annotated[
    float | None,
    typer.Option("--grace", metavar="HOURS", min=0, max=8760, help="Hours after which the old token expires."),
]


@connections_app.command("add")
def add_connection(
    name: Name,
    project: OfProject,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="Agent of all records from this connection.")
    ] = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Add a connection, which sends records of one project. Its token is printed once."""
    with _opened(database) as access, _kept(access, "connections add", name, project):
        token = access.add(Holder("connection", name, project, agent))
    _show_token(name, token, as_json=as_json)


@operators_app.command("add")
def add_operator(
    name: Name,
    project: Project = None,
    scopes: Annotated[
        str | None,
        typer.Option("--scopes", metavar="LIST", help="Scopes of the token, separated by commas; all by default."),
    ] = None,
    expires: Lasts = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Add an operator for one project or all. The token is printed once.

    Scopes: read; review (human scores and decisions on incidents); query (SQL statements; needs access to every project); admin.
    """
    granted: frozenset[str] = frozenset(SCOPES) - ({"query"} if project else set())
    if scopes is not None:
        granted = scopes_of(scope.strip() for scope in scopes.split(","))
    if project and "query" in granted:
        raise InputError("scopes: query is for operators of every project", hint="Leave out query, or --project.")
    with _opened(database) as access, _kept(access, "operators add", name, project):
        token = access.add(Holder("operator", name, project, scopes=granted), _days(expires))
    _show_token(name, token, as_json=as_json)


def _add_common(app: typer.Typer, kind: Kind) -> None:
    """Add the commands that connections and operators share."""

    @app.command("list", help=f"List the {kind}s by name, with the state of their tokens. Secrets are not shown.")
    def show(database: Database = None, as_json: AsJson = False) -> None:
        with _opened(database) as access:
            holders: Sequence[Holding] = connections(access) if kind == "connection" else operators(access)
        show_rows(holders, _table, as_json=as_json, none=f"no {kind} yet (driftline {kind}s add)", document=document)

    @app.command(
        "rotate", help="Print a new token once. The old token stays valid until it is revoked or its grace period ends."
    )
    def rotate(
        name: Name, grace: Grace = None, expires: Lasts = None, database: Database = None, as_json: AsJson = False
    ) -> None:
        with _opened(database) as access, _kept(access, f"{kind}s rotate", name):
            token = access.rotate(kind, name, None if grace is None else timedelta(hours=grace), _days(expires))
        _show_token(name, token, as_json=as_json)

    @app.command("revoke", help=f"Revoke one token ({MARK}_PREFIX) or all tokens of NAME, with immediate effect.")
    def revoke(
        which: Annotated[
            str, typer.Argument(metavar=f"NAME|{MARK}_PREFIX", help="Name of the holder, or prefix of one token.")
        ],
        database: Database = None,
        as_json: AsJson = False,
    ) -> None:
        # Somebody may paste a whole token: keep only its public prefix.
        shown = "_".join(which.split("_")[:2]) if which.startswith(f"{MARK}_") else which
        with _opened(database) as access, _kept(access, f"{kind}s revoke", shown):
            revoked = access.revoke(kind, which)
        if as_json:
            print_json({"revoked": revoked})
        else:
            out.print(f"{counted(revoked, 'token')} revoked")


_add_common(connections_app, "connection")
_add_common(operators_app, "operator")


def _days(days: int | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)


def _opened(database: Any) -> AccessStore:
    return AccessStore(access_file(settings_of(database).database), utc_now)


@contextlib.contextmanager
def _kept(access: AccessStore, command: str, subject: str, project: str | None = None) -> Iterator[None]:
    """Record in the audit log who ran a command, and its outcome."""
    write = Write(
        kind="command", name=_account(), method="COMMAND", route=command, project=project, subject=subject[:SHOWN_LENGTH]
    )
    line = access.audit_log.begin(write)
    try:
        yield
    except InputError:
        access.audit_log.end(line, "refused")
        raise
    access.audit_log.end(line, "done")


def _account() -> str:
    """Return the account on this machine; containers may have a number without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _show_token(name: str, token: str, *, as_json: bool) -> None:
    """Print a token alone on its line, so that a script can take it, or as JSON."""
    if as_json:
        print_json(document(IssuedToken(name=name, token=token)))
    else:
        out.say(token)
    err.print("The token is shown only once: store it with your secrets. The server stores only its digest.")


def _table(holders: Sequence[Holding]) -> Table:
    last = "agent" if isinstance(holders[0], ConnectionAccess) else "scopes"
    cells = [
        [holder.name, holder.project or "(every)", _agent_or_scopes(holder), ", ".join(map(_in_short, holder.tokens))]
        for holder in holders
    ]
    return table(["name", "project", last, "tokens"], cells)


def _agent_or_scopes(holder: Holding) -> str:
    return holder.agent or MISSING if isinstance(holder, ConnectionAccess) else ", ".join(holder.scopes)


def _in_short(token: Token) -> str:
    until = f" until {token.expires_at:%Y-%m-%dT%H:%M}Z" if token.expires_at and token.state == "live" else ""
    used = f", used {token.last_used_at:%Y-%m-%dT%H:%M}Z" if token.last_used_at else ""
    return f"{token.token} {token.state}{until}{used}"
