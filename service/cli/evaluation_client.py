"""Evaluations by a server: requested over HTTP, awaited, and read back as if made in this process.

1. Repeating a request asks no judge twice, so a call whose answer was lost is repeated.
2. The server does the work. A caller that stops waiting loses nothing, because a repeated request finds the result.
3. The token is sent over http:// only to this machine, unless the caller declares the network safe.
"""

from __future__ import annotations

import ipaddress
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx2
import msgspec
from tenacity import Retrying, retry_if_exception_type, retry_if_result, stop_after_attempt, wait_exponential

from audit.evaluation.cases import Case, LoadedProfile, Plan
from audit.evaluation.report import Evaluated
from schemas.errors import DriftlineError, SettingsError
from service.read.evaluations import evaluation_of
from service.text.links import EVALUATIONS
from service.write.evaluating import EvaluationEstimate, Progress, failed_evaluations, numbered
from streams.evaluations import Estimate, Prepared
from streams.finished_sessions import SessionSelection

TOKEN = "DRIFTLINE_TOKEN"  # noqa: S105 - the name of the variable
"""The variable with the operator's token; other users could read it on a command line."""
QUIET = 1800.0
"""Seconds without a new evaluation after which waiting ends."""
_CALL_SECONDS = 600.0
"""Preparing hundreds of evaluations takes a while."""
_CONNECT_SECONDS = 10.0
_ATTEMPTS = 6
_LATER = frozenset({408, 429, 503})
"""Statuses after which the call may be retried."""
_LOOKS = (0.2, 2.0)
"""Seconds between checks of an evaluation: at first, and at most."""
_SAFE_WAYS = (
    "Give an https:// address, or a tunnel's end on this machine (ssh -L 8377:127.0.0.1:8377 HOST, then --server http://127.0.0.1:8377), "
    "or use --insecure if the way is safe, as in your own network."
)
_HINTS = {
    401: f"{TOKEN} must hold the token of an operator.",
    403: "The token must be an operator's, with the scope admin, for the requested project.",
    404: "Name the address of a Driftline server of this version, such as http://127.0.0.1:8377.",
}


class ServerError(DriftlineError):
    """The server failed to do what was requested."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The cases, judges and sessions of an evaluation."""

    cases: Sequence[Case]
    profile: LoadedProfile
    plans: Sequence[Plan]
    wanted: SessionSelection
    retry_failed: bool


class EvaluationClient:
    """Calls a server; must be closed. SettingsError for an invalid address, or one to which the token may not be sent.

    `insecure` allows sending it over http:// to another machine, readable by everybody on the network path.
    """

    def __init__(
        self,
        server: str,
        token: str,
        *,
        insecure: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        quiet: float = QUIET,
    ) -> None:
        url = _url(server)
        if url.scheme == "http" and not insecure and not is_loopback(url.host):
            raise SettingsError(f"--server: over http:// the token is readable on the way to {url.host}", hint=_SAFE_WAYS)
        self._quiet = quiet
        self._sleep = sleep
        self._clock = clock
        # Do not use a proxy from the environment for a server on this machine: it would see the token.
        self._client = httpx2.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx2.Timeout(_CALL_SECONDS, connect=_CONNECT_SECONDS),
            trust_env=not is_loopback(url.host),
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def estimate(self, terms: Terms) -> Prepared:
        """Estimate the cost; no judge is asked."""
        answer = self._post(terms, dry_run=True)
        estimate = msgspec.structs.asdict(msgspec.convert(answer["estimate"], EvaluationEstimate))
        counts = {name: value or 0 for name, value in estimate.items()}
        return Prepared(estimate=Estimate(**counts), sessions=answer["sessions"])

    def evaluate(self, terms: Terms, report: Callable[[Progress], None]) -> list[Evaluated]:
        """Have the server evaluate; return the evaluations in its order. InputError for failed ones."""
        requests = self._post(terms, dry_run=False)["evaluations"]
        calls: Counter[str] = Counter()
        made: list[Evaluated] = []
        missing = []
        spent, total = 0.0, sum(not request["reused"] for request in requests)
        for request in requests:
            document = self._awaited(request)
            if document["setAside"] is not None:
                missing.append(f"{request['caseId']} on {request['sessionId']} ({document['setAside']})")
                continue
            evaluated = _evaluated(request, document)
            made.append(evaluated)
            if not evaluated.reused:
                iterations = document["evaluation"]["judgeResult"]["iterations"]
                calls.update(answer["outcome"] for answer in iterations if answer["attempts"])
                spent += evaluated.evaluation.cost_usd or 0.0
                report(Progress(sum(not each.reused for each in made), total, dict(calls), spent))
        if missing:
            raise failed_evaluations(missing, len(requests), "`driftline dead-letters list --stage evaluation` on the server")
        return made

    def _awaited(self, request: Mapping[str, Any]) -> Any:
        """Wait until the requested attempt is answered, and return the evaluation's document."""
        path = f"{EVALUATIONS}/{quote(request['id'], safe='')}"
        pause, most = _LOOKS
        ends_at = self._clock() + self._quiet
        while True:
            document = self._call("GET", path)
            if document["setAside"] is not None or _answered(document) >= request["attempt"]:
                return document
            if self._clock() >= ends_at:
                raise ServerError(
                    f"nothing was evaluated for {self._quiet / 60:g} minutes",
                    hint="Check that it has a judge (`driftline doctor`) and, over Kafka, workers (`driftline worker`). Run the same command to continue.",
                )
            self._sleep(pause)
            pause = min(pause * 1.5, most)

    def _post(self, terms: Terms, *, dry_run: bool) -> Any:
        return self._call("POST", EVALUATIONS, _body(terms, dry_run=dry_run))

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Make a call, with retries if allowed; ServerError with the server's message."""
        request = f"{self._client.base_url}: {method} {path}"
        again = Retrying(
            retry=retry_if_exception_type(httpx2.TransportError)
            | retry_if_result(lambda response: response.status_code in _LATER),
            wait=wait_exponential(multiplier=0.5),
            stop=stop_after_attempt(_ATTEMPTS),
            sleep=self._sleep,
            retry_error_callback=lambda tried: tried.outcome and tried.outcome.result(),
        )
        try:
            answer = again(self._client.request, method, path, json=body)
        except httpx2.TransportError as error:
            hint = "Is the server running, and reachable from here?"
            raise ServerError(f"{request}: {type(error).__name__}", hint=hint) from error
        if not answer.is_success:
            raise ServerError(f"{request}: {_words(answer)}", hint=_HINTS.get(answer.status_code, ""))
        return _json(answer)


def token_of_environment() -> str:
    """Return the token; SettingsError if there is none."""
    token = os.environ.get(TOKEN, "").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise SettingsError(
            f"{TOKEN}: {'is not set' if not token else 'is not a token'}",
            hint="Set it to the token of an operator with the scope admin: `driftline operators add NAME` creates one.",
        )
    return token


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _url(server: str) -> httpx2.URL:
    try:
        url = httpx2.URL(server)
    except httpx2.InvalidURL:
        url = httpx2.URL("")
    if url.scheme not in {"http", "https"} or not url.host or url.userinfo or url.query or url.fragment:
        raise SettingsError("--server: this is not a server's address", hint="Write it as http://127.0.0.1:8377.")
    return url


def _body(terms: Terms, *, dry_run: bool) -> dict[str, Any]:
    wanted, profile = terms.wanted, terms.profile.profile
    body: dict[str, Any] = {
        "cases": [case.model_dump(mode="json", exclude_unset=True) for case in terms.cases],
        "profile": profile.model_dump(mode="json", exclude_unset=True, exclude={"judge_system_prompt_path"}),
        "judgeRuns": [plan.judge_run_id for plan in terms.plans],
        "sessions": list(wanted.sessions),
        "tags": list(wanted.tags),
        "limit": wanted.limit,
        "retryFailed": terms.retry_failed,
        "dryRun": dry_run,
    }
    if profile.judge_system_prompt_path is not None:
        body["systemPrompt"] = terms.profile.system_prompt
    if wanted.project is not None:
        body["project"] = wanted.project
    if wanted.since is not None:
        body["since"] = wanted.since.isoformat()
    return body


def _answered(document: Mapping[str, Any]) -> int:
    """Return the newest answered attempt, finished or failed; -1 if there is none."""
    evaluation, failed = document["evaluation"], document.get("failedAttempt")
    return max(-1 if evaluation is None else evaluation["revision"], -1 if failed is None else failed)


def _evaluated(request: Mapping[str, Any], document: Mapping[str, Any]) -> Evaluated:
    """Return the evaluation, numbered as requested."""
    evaluation = numbered(evaluation_of(document["evaluation"]), request["attempt"], request["repetition"])
    return Evaluated(evaluation, document["systemPrompt"] or "", document["userPrompt"] or "", reused=request["reused"])


def _json(answer: httpx2.Response) -> Any:
    try:
        return msgspec.json.decode(answer.content)
    except msgspec.DecodeError:
        raise ServerError(f"{answer.request.url}: answers no JSON", hint=_HINTS[404]) from None


def _words(answer: httpx2.Response) -> str:
    """Return the server's message about the error, if any."""
    try:
        message = msgspec.json.decode(answer.content, type=dict[str, Any]).get("error")
    except (msgspec.DecodeError, msgspec.ValidationError):
        message = None
    return f"{answer.status_code} {message}" if isinstance(message, str) else str(answer.status_code)
