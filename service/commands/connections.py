"""Commands on access: who may deliver records (connections) and who may read and decide (operators), and their tokens."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from service.access import AccessStore, Holder, Kind, TokenState, access_file
from service.commands.options import AsJson, Database, settings_of, show_rows
from service.terminal import MISSING, counted, err, out, table
from service.tokens import MARK
from service.workspace import utc_now

connections_app = typer.Typer(no_args_is_help=True, help="Who may deliver records, and their tokens.")
operators_app = typer.Typer(no_args_is_help=True, help="Who may read and decide, and their tokens.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="a-z, 0-9, _ . - and at most 63 characters.")]
Grace = Annotated[
    float | None,
    typer.Option("--grace", metavar="HOURS", min=0, max=8760, help="The old token ends after so many hours by itself."),
]


@connections_app.command("add")
def add_connection(
    name: Name,
    project: Annotated[str, typer.Option("--project", metavar="NAME", help="Project that its records are filed under.")],
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Agent that all its records are of.")] = None,
    database: Database = None,
) -> None:
    """Add a connection and print its token, once."""
    with _opened(database) as access:
        _show_token(access.add(Holder("connection", name, project, agent)))


@operators_app.command("add")
def add_operator(
    name: Name,
    project: Annotated[str | None, typer.Option("--project", metavar="NAME", help="Only this project.")] = None,
    database: Database = None,
) -> None:
    """Add an operator and print the token, once."""
    with _opened(database) as access:
        _show_token(access.add(Holder("operator", name, project)))


def _add_common(app: typer.Typer, kind: Kind) -> None:
    """The commands that are the same for connections and operators."""

    @app.command("list", help=f"List the {kind}s and the state of their tokens; no token is shown.")
    def show(database: Database = None, as_json: AsJson = False) -> None:
        with _opened(database) as access:
            rows = [_row(holder, tokens) for holder, tokens in access.holders(kind)]
        show_rows(rows, _table, as_json=as_json, none=f"no {kind} yet (driftline {kind}s add)")

    @app.command("rotate", help="Print a further token, once; the old one stays live until it is revoked or its grace ends.")
    def rotate(name: Name, grace: Grace = None, database: Database = None) -> None:
        with _opened(database) as access:
            _show_token(access.rotate(kind, name, None if grace is None else timedelta(hours=grace)))

    @app.command("revoke", help=f"Revoke one token ({MARK}_PREFIX), or every token of a NAME, at once.")
    def revoke(
        which: Annotated[str, typer.Argument(metavar=f"NAME|{MARK}_PREFIX", help="Whose tokens, or which one.")],
        database: Database = None,
    ) -> None:
        with _opened(database) as access:
            out.print(f"{counted(access.revoke(kind, which), 'token')} revoked")


_add_common(connections_app, "connection")
_add_common(operators_app, "operator")


def _opened(database: Any) -> AccessStore:
    return AccessStore(access_file(settings_of(database).database), utc_now)


def _show_token(token: str) -> None:
    """Print a token alone on its line, so that a script can take it."""
    out.print(token, markup=False, soft_wrap=True)
    err.print("This is shown once: keep it where secrets are kept. The server stores only a digest of it.")


def _row(holder: Holder, tokens: list[TokenState]) -> dict[str, Any]:
    states = [
        {"token": f"{MARK}_{token.prefix}", "state": token.state, "created": token.created_at, "expires": token.expires_at}
        for token in tokens
    ]
    return {"name": holder.name, "project": holder.project, "agent": holder.agent, "tokens": states}


def _table(rows: Any) -> Any:
    shown = [
        [row["name"], row["project"] or "(every)", row["agent"] or MISSING, ", ".join(map(_short, row["tokens"]))]
        for row in rows
    ]
    return table(["name", "project", "agent", "tokens"], shown)


def _short(token: dict[str, Any]) -> str:
    until = f" until {token['expires'][:16]}Z" if token["expires"] and token["state"] == "live" else ""
    return f"{token['token']} {token['state']}{until}"
