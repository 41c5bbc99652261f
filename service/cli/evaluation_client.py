"""Client for evaluations on a server: requests them over HTTP, waits for them, and reads the results.

1. A repeated request does not call a judge again, so a call whose answer was lost is repeated.
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

TOKEN_VARIABLE = "DRIFTLINE_TOKEN"  # noqa: S105 - the name of the variable
"""The environment variable with the operator's token. On a command line other users could read it."""
IDLE_SECONDS = 1800.0
"""Seconds without a new evaluation after which waiting ends."""
_CALL_SECONDS = 600.0
"""Preparing hundreds of evaluations takes a while."""
_CONNECT_SECONDS = 10.0
_ATTEMPTS = 6
_RETRIED_STATUSES = frozenset({408, 429, 503})
"""Statuses after which the call may be retried."""
_FIRST_POLL_SECONDS = 0.2
"""Seconds between the first checks of an evaluation; later ones take longer."""
_MAX_POLL_SECONDS = 2.0
_POLL_FACTOR = 1.5
_SAFE_SERVER_HINT = (
    "Give an https:// address, or a tunnel's end on this machine (ssh -L 8377:127.0.0.1:8377 HOST, then --server http://127.0.0.1:8377), "
    "or use --insecure if the network is safe, such as your own."
)
_HINTS = {
    401: f"{TOKEN_VARIABLE} must hold the token of an operator.",
    403: "The token must be an operator's, with the scope admin, for the requested project.",
    404: "Name the address of a Driftline server of this version, such as http://127.0.0.1:8377.",
}


class ServerError(DriftlineError):
    """The server failed to do what was requested."""


@dataclass(frozen=True, slots=True)
class EvaluationTerms:
    """The cases, judges and sessions of an evaluation."""

    cases: Sequence[Case]
    profile: LoadedProfile
    plans: Sequence[Plan]
    selection: SessionSelection
    retry_failed: bool


class EvaluationClient:
    """Calls a server; must be closed. Raises SettingsError for an invalid address, or one to which the token may not be sent.

    `insecure` allows sending the token over http:// to another machine. Anyone on the network path can then read it.
    """

    def __init__(
        self,
        server: str,
        token: str,
        *,
        insecure: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        url = _parse_url(server)
        if url.scheme == "http" and not insecure and not is_loopback(url.host):
            raise SettingsError(
                f"--server: over http:// the token is readable by anyone on the network path to {url.host}",
                hint=_SAFE_SERVER_HINT,
            )
        self._idle_seconds = idle_seconds
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

    def estimate(self, terms: EvaluationTerms) -> Prepared:
        """Return the estimated cost. No judge is called."""
        answer = self._post(terms, dry_run=True)
        estimate = msgspec.structs.asdict(msgspec.convert(answer["estimate"], EvaluationEstimate))
        counts = {name: value or 0 for name, value in estimate.items()}
        return Prepared(estimate=Estimate(**counts), sessions=answer["sessions"])

    def evaluate(self, terms: EvaluationTerms, report: Callable[[Progress], None]) -> list[Evaluated]:
        """Have the server evaluate, and return the evaluations in its order. Raises InputError if some failed."""
        requests = self._post(terms, dry_run=False)["evaluations"]
        calls: Counter[str] = Counter()
        results: list[Evaluated] = []
        missing = []
        new_count = 0
        spent = 0.0
        total = sum(not request["reused"] for request in requests)
        for request in requests:
            document = self._wait_for_evaluation(request)
            if document["setAside"] is not None:
                missing.append(f"{request['caseId']} on {request['sessionId']} ({document['setAside']})")
                continue
            evaluated = _read_evaluation(request, document)
            results.append(evaluated)
            if not evaluated.reused:
                iterations = document["evaluation"]["judgeResult"]["iterations"]
                calls.update(answer["outcome"] for answer in iterations if answer["attempts"])
                spent += evaluated.evaluation.cost_usd or 0.0
                new_count += 1
                report(Progress(new_count, total, dict(calls), spent))
        if missing:
            raise failed_evaluations(missing, len(requests), "`driftline dead-letters list --stage evaluation` on the server")
        return results

    def _wait_for_evaluation(self, request: Mapping[str, Any]) -> Any:
        """Wait until the requested attempt is answered, and return the evaluation's document."""
        path = f"{EVALUATIONS}/{quote(request['id'], safe='')}"
        pause = _FIRST_POLL_SECONDS
        ends_at = self._clock() + self._idle_seconds
        while True:
            document = self._call("GET", path)
            if document["setAside"] is not None or _newest_attempt(document) >= request["attempt"]:
                return document
            if self._clock() >= ends_at:
                raise ServerError(
                    f"nothing was evaluated for {self._idle_seconds / 60:g} minutes",
                    hint="Check that it has a judge (`driftline doctor`) and, over Kafka, workers (`driftline worker`). Run the same command to continue.",
                )
            self._sleep(pause)
            pause = min(pause * _POLL_FACTOR, _MAX_POLL_SECONDS)

    def _post(self, terms: EvaluationTerms, *, dry_run: bool) -> Any:
        return self._call("POST", EVALUATIONS, _request_body(terms, dry_run=dry_run))

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Make a call, and retry it after temporary failures. Raises ServerError with the server's message."""
        request = f"{self._client.base_url}: {method} {path}"
        retrying = Retrying(
            retry=retry_if_exception_type(httpx2.TransportError)
            | retry_if_result(lambda response: response.status_code in _RETRIED_STATUSES),
            wait=wait_exponential(multiplier=0.5),
            stop=stop_after_attempt(_ATTEMPTS),
            sleep=self._sleep,
            retry_error_callback=lambda state: state.outcome and state.outcome.result(),
        )
        try:
            answer = retrying(self._client.request, method, path, json=body)
        except httpx2.TransportError as error:
            hint = "Is the server running, and reachable from here?"
            raise ServerError(f"{request}: {type(error).__name__}", hint=hint) from error
        if not answer.is_success:
            raise ServerError(f"{request}: {_describe_error(answer)}", hint=_HINTS.get(answer.status_code, ""))
        return _decode_json(answer)


def token_of_environment() -> str:
    """Return the token. Raises SettingsError if there is none."""
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise SettingsError(
            f"{TOKEN_VARIABLE}: {'is not set' if not token else 'is not a token'}",
            hint="Set it to the token of an operator with the scope admin: `driftline operators add NAME` creates one.",
        )
    return token


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _parse_url(server: str) -> httpx2.URL:
    try:
        url = httpx2.URL(server)
    except httpx2.InvalidURL:
        url = httpx2.URL("")
    if url.scheme not in {"http", "https"} or not url.host or url.userinfo or url.query or url.fragment:
        raise SettingsError("--server: this is not a server's address", hint="Write it as http://127.0.0.1:8377.")
    return url


def _request_body(terms: EvaluationTerms, *, dry_run: bool) -> dict[str, Any]:
    selection = terms.selection
    profile = terms.profile.profile
    body: dict[str, Any] = {
        "cases": [case.model_dump(mode="json", exclude_unset=True, exclude={"recorded"}) for case in terms.cases],
        "profile": profile.model_dump(mode="json", exclude_unset=True, exclude={"judge_system_prompt_path"}),
        "judgeRuns": [plan.judge_run_id for plan in terms.plans],
        "sessions": list(selection.sessions),
        "tags": list(selection.tags),
        "limit": selection.limit,
        "retryFailed": terms.retry_failed,
        "dryRun": dry_run,
    }
    if profile.judge_system_prompt_path is not None:
        body["systemPrompt"] = terms.profile.system_prompt
    if selection.project is not None:
        body["project"] = selection.project
    if selection.since is not None:
        body["since"] = selection.since.isoformat()
    return body


def _newest_attempt(document: Mapping[str, Any]) -> int:
    """Return the newest answered attempt, finished or failed; -1 if there is none."""
    evaluation = document["evaluation"]
    finished_attempt = -1 if evaluation is None else evaluation["revision"]
    failed_attempt = document.get("failedAttempt")
    return finished_attempt if failed_attempt is None else max(finished_attempt, failed_attempt)


def _read_evaluation(request: Mapping[str, Any], document: Mapping[str, Any]) -> Evaluated:
    """Return the evaluation, numbered as requested."""
    evaluation = numbered(evaluation_of(document["evaluation"]), request["attempt"], request["repetition"])
    return Evaluated(evaluation, document["systemPrompt"] or "", document["userPrompt"] or "", reused=request["reused"])


def _decode_json(answer: httpx2.Response) -> Any:
    try:
        return msgspec.json.decode(answer.content)
    except msgspec.DecodeError:
        raise ServerError(f"{answer.request.url}: the answer is not JSON", hint=_HINTS[404]) from None


def _describe_error(answer: httpx2.Response) -> str:
    """Return the server's message about the error, if any."""
    try:
        message = msgspec.json.decode(answer.content, type=dict[str, Any]).get("error")
    except (msgspec.DecodeError, msgspec.ValidationError):
        message = None
    return f"{answer.status_code} {message}" if isinstance(message, str) else str(answer.status_code)
