"""A client of a Driftline server for notebooks and scripts: answers as polars, Arrow or pandas.

    from driftline.client import Client

    client = Client("https://audit.example.com", token)
    client.sql("SELECT day, tier2 FROM days WHERE project = $project", project="shop").polars()
    client.list("incidents", status="open").polars()

It imports nothing else of Driftline.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import httpx2

if TYPE_CHECKING:
    import polars as pl

API = "/api/audit"
DEFAULT_TIMEOUT = 60.0
Scalar = str | int | float | bool | date | datetime | None
Parameter = Scalar | Sequence[Scalar]


class ClientError(Exception):
    """A request that the server refused, or that did not reach it. The message is the server's.

    `status` is the HTTP status and `code` the reason for programs; both are None if there was no answer.
    """

    def __init__(self, message: str, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class TruncatedWarning(UserWarning):
    """There are more rows than the limit of the request."""


@dataclass(frozen=True)
class Table:
    """The rows of an answer. Libraries that read Arrow streams (polars, pyarrow, DuckDB) take it as it is."""

    frame: pl.DataFrame
    truncated: bool
    """Whether there are more rows than the limit."""
    as_of: datetime | None = None
    """The time of the snapshot that a statement was answered from, UTC; None for a list, which is read from the live tables."""

    def polars(self) -> pl.DataFrame:
        """Return the rows as a polars frame."""
        return self.frame

    def arrow(self) -> Any:
        """Return the rows as a table of pyarrow, which must be installed."""
        return self.frame.to_arrow()

    def pandas(self) -> Any:
        """Return the rows as a frame of pandas, which must be installed with pyarrow."""
        return self.frame.to_pandas()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.frame.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return self.frame.height


class Client:
    """A client of the server at an address, with the token of an operator.

    SQL takes the scope `query`, lists the scope `read`; both answer with the projects of the token. Use it in a `with` block, or close it.
    """

    def __init__(self, url: str, token: str, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Raises ValueError without an address or a token. `timeout` is in seconds."""
        if not url.startswith(("https://", "http://")):
            raise ValueError("url: must be the server's address, such as https://audit.example.com")
        if not token.strip():
            raise ValueError("token: is empty; an admin creates one with `driftline operators add NAME`")
        headers = {"Authorization": f"Bearer {token.strip()}"}
        # Redirects are not followed, because they would carry the token to another address.
        self._http = httpx2.Client(base_url=url.rstrip("/"), headers=headers, timeout=timeout, follow_redirects=False)

    def sql(
        self,
        statement: str,
        parameters: Mapping[str, Parameter] | None = None,
        /,
        *,
        limit: int = 1_000_000,
        **values: Parameter,
    ) -> Table:
        """Return the answer to one read-only statement, from a snapshot of all records in their latest revisions.

        `$name` in the statement stands for a parameter: an entry of `parameters`, or a keyword. A date is sent as a text, which the
        statement casts (`$day::DATE`). Warns with TruncatedWarning if there are more rows than `limit`. Raises ClientError if the
        server refuses the statement, or two others are running.
        """
        import polars as pl  # noqa: PLC0415 - it takes a while to load

        named = {name: _to_json(value) for name, value in {**(parameters or {}), **values}.items()}
        body = {"sql": statement, "format": "arrow", "limit": limit, "parameters": named}
        response = self._call("POST", "query", json=body)
        is_truncated = response.headers["X-Driftline-Truncated"] == "true"
        _warn_if(truncated=is_truncated, limit=limit)
        as_of = datetime.fromisoformat(response.headers["X-Driftline-As-Of"])
        return Table(pl.read_ipc(io.BytesIO(response.content), use_pyarrow=False), is_truncated, as_of)

    def list(self, path: str, /, *, limit: int = 1_000, **filters: Parameter) -> Table:
        """Return a list of the API, page by page, with the fields of its answer as columns; times are texts.

        `path` is below `/api/audit`: `incidents`, `projects`, `shop/sessions`, `shop/scores`, `shop/runs`. `filters` are the query of the
        endpoint, such as `status="open"`. Warns with TruncatedWarning if there are more rows than `limit`. Raises ClientError.
        """
        import polars as pl  # noqa: PLC0415 - it takes a while to load

        rows: list[Any] = []
        query = {name: _to_json(value) for name, value in filters.items() if value is not None}
        cursor: str | None = None
        while True:
            page = {} if cursor is None else {"cursor": cursor}
            answer = self._call("GET", path.strip("/"), params={**query, **page}).json()
            rows += _find_rows(path, answer)
            cursor = answer.get("nextCursor")
            if cursor is None or len(rows) > limit:
                break
        is_truncated = cursor is not None or len(rows) > limit
        _warn_if(truncated=is_truncated, limit=limit)
        return Table(pl.DataFrame(rows[:limit], infer_schema_length=None, strict=False), is_truncated)

    def close(self) -> None:
        """Close the connections to the server."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({str(self._http.base_url)!r})"

    def _call(self, method: str, path: str, **request: Any) -> httpx2.Response:
        try:
            response = self._http.request(method, f"{API}/{path}", **request)
        except httpx2.HTTPError as error:
            raise ClientError(f"{self._http.base_url} did not answer: {error or type(error).__name__}") from error
        is_json = response.headers.get("content-type", "").startswith("application/json")
        if response.is_success and (is_json or "X-Driftline-As-Of" in response.headers):
            return response
        # A proxy may answer with a page of its own.
        message, code = f"{self._http.base_url} answered {response.status_code}, but not as Driftline does", None
        if is_json:
            answer = response.json()
            message, code = answer.get("error", message), answer.get("code")
        raise ClientError(message, response.status_code, code)


def _find_rows(path: str, answer: Mapping[str, Any]) -> list[Any]:
    """Return the only list in an answer."""
    lists = [value for value in answer.values() if isinstance(value, list)]
    if len(lists) != 1:
        raise ClientError(f"{path} is no list; call the API for a single answer")
    rows: list[Any] = lists[0]
    return rows


def _to_json(value: Parameter) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    return [_to_json(item) for item in value] if isinstance(value, list | tuple) else value


def _warn_if(*, truncated: bool, limit: int) -> None:
    if truncated:
        warnings.warn(f"there are more than {limit} rows; raise limit, or narrow the request", TruncatedWarning, stacklevel=3)
