"""`driftline simulate-judge`: a judge for trials, offline and free."""

from __future__ import annotations

import logging
import threading
from typing import Annotated

import typer

from driftline_trial.simulator import running
from driftline_trial.simulator.answers import MODEL
from driftline_trial.simulator.scripts import KINDS
from schemas.errors import SettingsError
from service.cli.terminal import out
from streams.process import handled

PORT = 8788
NOTICE = "(simulated: it rates by simple rules, not by understanding)"


def simulate_judge(
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = PORT,
    script: Annotated[
        str,
        typer.Option(metavar="STEPS", help=f"Reaction to each request: kind[:argument][*count],… Kinds: {', '.join(KINDS)}."),
    ] = "answer",
    script_for: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT=STEPS",
            help="Steps for requests whose prompt holds the text; each question has its own sequence. May be repeated.",
        ),
    ] = None,
    latency: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait before each answer.")] = 0.0,
    faults: Annotated[
        float, typer.Option(min=0, max=1, metavar="SHARE", help="Share of requests that get a random fault.")
    ] = 0.0,
    batch_seconds: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Time that a batch of messages takes.")] = 0.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random faults.")] = 0,
    model: Annotated[str, typer.Option(metavar="NAME", help="Model that it claims to be.")] = MODEL,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log one line per request, without texts.")] = False,
) -> None:
    """Serve a simulated judge until interrupted: it speaks the Messages API, on this machine only, and needs no key.

    Every answer says that it is simulated. To use it, give its address as the judge's base URL and anything as the key.
    """
    if verbose:
        logging.getLogger("driftline_trial.simulator").setLevel(logging.INFO)
    scripts_for = dict(_split_script(text) for text in script_for or ())
    serving = running(script, latency, seed, faults, port, batch_seconds=batch_seconds, scripts_for=scripts_for, model=model)
    stopped = threading.Event()
    with handled(lambda _: stopped.set()), serving as judge:
        out.say(f"simulated judge at {judge.base_url} {NOTICE}")
        stopped.wait()


def _split_script(script: str) -> tuple[str, str]:
    """Split a text and its steps; steps hold no equals sign, so a text may."""
    text, _, steps = script.rpartition("=")
    if not text:
        raise SettingsError(
            f"script for a text: {script!r} has no text", hint="Write TEXT=STEPS, such as 'rotate the key=garbage*2,answer'."
        )
    return text, steps
