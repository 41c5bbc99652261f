"""`driftline mcp`: tools for assistants that speak the Model Context Protocol."""

from __future__ import annotations

import importlib.util
import os
from typing import Annotated

import typer

from schemas.errors import SettingsError
from service.cli.commands.options import Database, PolicyFile, settings_of
from service.cli.evaluation_client import TOKEN_VARIABLE
from service.cli.terminal import err
from service.setup.access import AccessStore, access_file
from service.setup.workspace import require_database, utc_now

INSTALL = "Install it: pip install 'driftline[mcp]'"


def mcp(
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="PORT",
            min=0,
            max=65_535,
            help="Serve over HTTP on this port instead of standard input and output.",
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="With --port: address to listen on.")] = "127.0.0.1",
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name", metavar="HOST", help="With --port: host name under which requests are accepted; may be repeated."
        ),
    ] = None,
    expose: Annotated[
        bool, typer.Option("--expose", help="Allow an address for --host that other machines can reach.")
    ] = False,
    database: Database = None,
    policy: PolicyFile = None,
) -> None:
    """Serve assistants over the Model Context Protocol: what got worse, why, evidence, sessions, SQL. Nothing is changed.

    An assistant that starts the command reads the whole database, or what the token in DRIFTLINE_TOKEN allows. Over HTTP each request needs
    the token of an operator with the scope read.
    """
    if importlib.util.find_spec("mcp") is None:
        raise SettingsError("mcp: the Model Context Protocol SDK is not installed", hint=INSTALL)
    settings = settings_of(database, policy)
    require_database(settings.database)
    from service.mcp.server import serve_http, serve_stdio  # noqa: PLC0415 - the SDK takes a second to load
    from service.mcp.tools import Rights, rights_of  # noqa: PLC0415

    if port is None:
        rights: Rights | None = Rights()
        token = os.environ.get(TOKEN_VARIABLE)
        if token:
            with AccessStore(access_file(settings.database), utc_now) as access:
                holder = access.find(token.encode())
            rights = None if holder is None else rights_of(holder)
        if rights is None:
            raise SettingsError(
                f"{TOKEN_VARIABLE}: not a valid token of an operator with the scope read",
                hint="Add an operator with `driftline operators add NAME --scopes read`, or unset the variable.",
            )
        serve_stdio(settings, rights)
        return
    from service.server.server_lifecycle import listen  # noqa: PLC0415 - the web framework takes half a second to load

    with listen(host, port, expose=expose) as listener, AccessStore(access_file(settings.database), utc_now) as access:
        bound = listener.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{bound}"
        hosts = [f"{name}:{bound}" for name in dict.fromkeys((shown, "127.0.0.1", "localhost", "[::1]"))]
        hosts += [host_name for name in names or () for host_name in (name, f"{name}:*")]
        err.say(f"Driftline's tools are at {address}/mcp, for tokens of operators. Press Ctrl-C to stop.")
        serve_http(settings, access, listener, address, hosts)
