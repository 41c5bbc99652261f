"""`driftline connections`, `operators` and `links`: senders of records, people who read and decide, their tokens, and shared pages."""

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
from service.setup.access import (
    LINK_DURATION,
    MAX_SHARED_DAYS,
    ROLES,
    SCOPES,
    SHARED_DAYS,
    TOKEN_TAG,
    AccessStore,
    Holder,
    Kind,
    SharedLink,
    Token,
    Write,
    access_file,
    scopes_of,
    scopes_of_role,
)
from service.setup.workspace import utc_now
from service.text.answers import document
from service.text.formats import MISSING, counted
from service.text.links import Links, read_shared_page

connections_app = typer.Typer(no_args_is_help=True, help="Manage connections, which send records, and their tokens.")
links_app = typer.Typer(no_args_is_help=True, help="Manage links that open one page to people without an account.")
operators_app = typer.Typer(no_args_is_help=True, help="Manage operators, who read and decide, and their tokens.")

HolderAccess = ConnectionAccess | OperatorAccess
MAX_SUBJECT_LENGTH = 64
"""Maximum length of a subject in the audit log."""
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of at most 63 characters: a-z, 0-9, _ . -")]
Expires = Annotated[
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
    with _open_access(database) as access, _record_command(access, "connections add", name, project):
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
    role: Annotated[
        str | None, typer.Option("--role", metavar="ROLE", help=f"Role instead of scopes: {', '.join(ROLES)}.")
    ] = None,
    expires: Expires = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Add an operator for one project or all. The token is printed once.

    Scopes: read; review (human scores and decisions on incidents); query (SQL statements over the operator's projects); admin.
    Roles: viewer (read), reviewer (read and review), analyst (read and query), admin (all).
    """
    if role is not None and scopes is not None:
        raise InputError("--role and --scopes: both say what the operator may do", hint="Leave out one of them.")
    granted: frozenset[str] = frozenset(SCOPES)
    if role is not None:
        granted = scopes_of_role(role)
    elif scopes is not None:
        granted = scopes_of(scope.strip() for scope in scopes.split(","))
    with _open_access(database) as access, _record_command(access, "operators add", name, project):
        token = access.add(Holder("operator", name, project, scopes=granted), _parse_days(expires))
        _show_link(access, token, database)
    _show_token(name, token, as_json=as_json)


@links_app.command("add")
def add_link(
    page: Annotated[
        str,
        typer.Argument(metavar="PATH", help="Path of an incident, exchange, session or run: /projects/ops/incidents/1a2b3c4d."),
    ],
    expires: Annotated[
        int, typer.Option("--expires", metavar="DAYS", min=1, max=MAX_SHARED_DAYS, help="Days after which the link expires.")
    ] = SHARED_DAYS,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Create a link that opens one page, read-only, to anyone who has it. It is printed once."""
    shared = read_shared_page(page)
    with _open_access(database) as access, _record_command(access, "links add", shared.path, shared.project):
        link, code = access.shared_links.create(shared, _account_name(), None, expires)
    address = f"{_server_address(database)}{Links.sign_in}#{code}"
    if as_json:
        print_json({**document(link), "address": address})
    else:
        out.say(address)
    err.print(
        f"The link is shown only once. It expires at {link.expires_at:%Y-%m-%d %H:%M} UTC; `driftline links revoke {link.id}` ends it now."
    )


@links_app.command("list")
def list_links(database: Database = None, as_json: AsJson = False) -> None:
    """List the shared links, live ones first. Their codes are not stored."""
    with _open_access(database) as access:
        links = access.shared_links.listed()
    show_rows(links, _links_table, as_json=as_json, none="no shared link (driftline links add)", document=document)


@links_app.command("revoke")
def revoke_link(
    link: Annotated[str, typer.Argument(metavar="ID", help="Id of the link, as in the list.")],
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a shared link: its page closes at once."""
    with _open_access(database) as access, _record_command(access, "links revoke", link):
        if not access.shared_links.revoke(link):
            raise InputError(f"there is no shared link {link[:64]!r}", hint="`driftline links list` shows them.")
    if as_json:
        print_json({"id": link, "revoked": True})
    else:
        out.print("revoked")


def _links_table(links: Sequence[SharedLink]) -> Table:
    cells = [
        [link.id, link.state, link.page, link.created_by, f"{link.expires_at:%Y-%m-%d %H:%M}", str(link.opened)]
        for link in links
    ]
    return table(["link", "state", "page", "by", "expires", "opened"], cells, right=["opened"])


def _add_common(app: typer.Typer, kind: Kind) -> None:
    """Add the commands that connections and operators share."""

    @app.command("list", help=f"List the {kind}s by name, with the state of their tokens. Secrets are not shown.")
    def show(database: Database = None, as_json: AsJson = False) -> None:
        with _open_access(database) as access:
            holders: Sequence[HolderAccess] = connections(access) if kind == "connection" else operators(access)
        show_rows(holders, _holders_table, as_json=as_json, none=f"no {kind} yet (driftline {kind}s add)", document=document)

    @app.command(
        "rotate", help="Print a new token once. The old token stays valid until it is revoked or its grace period ends."
    )
    def rotate(
        name: Name, grace: Grace = None, expires: Expires = None, database: Database = None, as_json: AsJson = False
    ) -> None:
        with _open_access(database) as access, _record_command(access, f"{kind}s rotate", name):
            token = access.rotate(kind, name, None if grace is None else timedelta(hours=grace), _parse_days(expires))
            if kind == "operator":
                _show_link(access, token, database)
        _show_token(name, token, as_json=as_json)

    @app.command("revoke", help=f"Revoke one token ({TOKEN_TAG}_PREFIX) or all tokens of NAME, with immediate effect.")
    def revoke(
        which: Annotated[
            str, typer.Argument(metavar=f"NAME|{TOKEN_TAG}_PREFIX", help="Name of the holder, or prefix of one token.")
        ],
        database: Database = None,
        as_json: AsJson = False,
    ) -> None:
        # A user may paste a complete token: log only its public prefix.
        subject = "_".join(which.split("_")[:2]) if which.startswith(f"{TOKEN_TAG}_") else which
        with _open_access(database) as access, _record_command(access, f"{kind}s revoke", subject):
            revoked = access.revoke(kind, which)
        if as_json:
            print_json({"revoked": revoked})
        else:
            out.print(f"{counted(revoked, 'token')} revoked")


_add_common(connections_app, "connection")
_add_common(operators_app, "operator")


def _parse_days(days: int | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)


def _open_access(database: Any) -> AccessStore:
    return AccessStore(access_file(settings_of(database).database), utc_now)


@contextlib.contextmanager
def _record_command(access: AccessStore, command: str, subject: str, project: str | None = None) -> Iterator[None]:
    """Record a command in the audit log, with its user and its outcome."""
    write = Write(
        kind="command",
        name=_account_name(),
        method="COMMAND",
        route=command,
        project=project,
        subject=subject[:MAX_SUBJECT_LENGTH],
    )
    line = access.audit_log.begin(write)
    try:
        yield
    except InputError:
        access.audit_log.end(line, "refused")
        raise
    access.audit_log.end(line, "done")


def _account_name() -> str:
    """Return the name of the account on this machine. In containers, an account may have only a number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _show_token(name: str, token: str, *, as_json: bool) -> None:
    """Print a token alone on its line, which scripts can read, or as JSON."""
    if as_json:
        print_json(document(IssuedToken(name=name, token=token)))
    else:
        out.say(token)
    err.print("The token is shown only once: store it with your secrets. The server stores only its digest.")


def _show_link(access: AccessStore, token: str, database: Any) -> None:
    """Print a link that signs in to the server's pages once."""
    minutes = LINK_DURATION // timedelta(minutes=1)
    err.print(f"To sign in to the pages, open this link within {minutes} minutes; it works once, while the server runs:")
    err.say(f"{_server_address(database)}{Links.sign_in}#{access.sign_ins.create_link(token)}")


def _server_address(database: Any) -> str:
    settings = settings_of(database)
    return (settings.public_url or f"http://{settings.host}:{settings.port}").rstrip("/")


def _holders_table(holders: Sequence[HolderAccess]) -> Table:
    detail = "agent" if isinstance(holders[0], ConnectionAccess) else "scopes"
    cells = [
        [holder.name, _projects_of(holder), _agent_or_scopes(holder), ", ".join(map(_describe_token, holder.tokens))]
        for holder in holders
    ]
    return table(["name", "project", detail, "tokens"], cells)


def _projects_of(holder: HolderAccess) -> str:
    if isinstance(holder, OperatorAccess) and holder.grants:
        return ", ".join(holder.grants).replace("*", "(every)")
    return holder.project or "(every)"


def _agent_or_scopes(holder: HolderAccess) -> str:
    if isinstance(holder, ConnectionAccess):
        return holder.agent or MISSING
    if len(holder.grants) > 1:
        return "; ".join(", ".join(scopes) for scopes in holder.grants.values())
    return ", ".join(holder.scopes)


def _describe_token(token: Token) -> str:
    until = f" until {token.expires_at:%Y-%m-%dT%H:%M}Z" if token.expires_at and token.state == "live" else ""
    used = f", used {token.last_used_at:%Y-%m-%dT%H:%M}Z" if token.last_used_at else ""
    return f"{token.token} {token.state}{until}{used}"
