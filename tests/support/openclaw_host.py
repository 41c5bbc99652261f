"""OpenClaw as the plugin sees it: node with the plugin in it, whose hooks are called in the order that OpenClaw calls them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from support.servers import PATIENCE, ROOT

PLUGIN = ROOT / "examples" / "openclaw-plugin"
NODE = shutil.which("node")
ALLOWED = {"hooks": {"allowConversationAccess": True}}
QUICK = {"flushMs": 5, "retryBaseMs": 20, "retryMaxMs": 60, "heartbeatSeconds": 0}
LAGS = {"user": 12, "assistant": 800, "toolResult": 3}
"""Milliseconds between the beginning of a message and its entry."""
Json = dict[str, Any]


class Host:
    """One process of OpenClaw. `logged` is the plugin's log, `slowest` the longest duration of a hook in milliseconds."""

    def __init__(self, config: Json, entry: Json | None = None, *, has_transcripts: bool = False) -> None:
        assert NODE is not None
        self._process = subprocess.Popen(
            [NODE, str(PLUGIN / "unit" / "host.js")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._at: int | None = None
        self.logged: list[str] = []
        self.slowest = 0.0
        settings = {"config": QUICK | config, "entry": ALLOWED if entry is None else entry, "hasTranscripts": has_transcripts}
        self._ask(settings)

    def hook(self, name: str, event: Json, session: str, run: str = "run-1") -> None:
        """Call a hook; it must return nothing, as OpenClaw requires of an observer."""
        context = {"agentId": "main", "sessionId": session, "sessionKey": f"agent:main:{session}", "runId": run}
        answer = self._ask({"hook": name, "event": event, "context": context})
        assert answer["returned"] is None
        self.slowest = max(self.slowest, answer["ms"])

    def transcript(self, session: str, entry: Json, *, of_file: bool = False) -> None:
        """Announce a message written to the transcript: in a database, or, in earlier versions, in a file, which the announcement names."""
        key = f"agent:main:{session}"
        target = {"agentId": "main", "sessionId": session, "sessionKey": key}
        update = {"sessionFile": f"/state/agents/main/sessions/{session}.jsonl"} if of_file else {**target, "target": target}
        self._ask({"update": update | {"sessionKey": key, "message": entry["message"], "messageId": entry["id"]}})

    def live(self, session: str, entries: Sequence[Json], *, of_file: bool = False) -> None:
        """Replay a session live: transcript updates and hooks, in OpenClaw's order and with its arguments.

        `written` are the transcript's entries. Of results of tools there is no update, and a hook has what the tool gave.
        """
        wrote = [entry for entry in entries if entry["type"] == "message"]
        messages: list[Json] = []
        run = ""
        for number, entry in enumerate(wrote):
            message = entry["message"]
            run = f"run-{entry['id']}" if message["role"] == "user" else run
            messages.append(message)
            self._at = message["timestamp"]
            if message["role"] != "toolResult":
                self.transcript(session, entry, of_file=of_file)
            self._tools(session, message, run)
            if number + 1 == len(wrote) or wrote[number + 1]["message"]["role"] == "user":
                failed = message.get("stopReason") in ("error", "aborted")
                self._end(session, messages, run, success=not failed, **({"error": "failed"} if failed else {}))
        self._at = None

    def turn(self, session: str, messages: Sequence[Json], run: str = "run-1", **event: Any) -> None:
        """Replay a run from its first tool call to its end; `messages` are all of the session, and the last user message begins the run."""
        question_index = max(number for number, message in enumerate(messages) if message["role"] == "user")
        for message in messages[question_index + 1 :]:
            self._tools(session, message, run)
        self._end(session, messages, run, **event)

    def _tools(self, session: str, message: Json, run: str) -> None:
        for block in message["content"] if message["role"] == "assistant" else ():
            if block["type"] == "toolCall":
                call = {"toolName": block["name"], "toolCallId": block["id"], "params": block["arguments"], "runId": run}
                self.hook("before_tool_call", call, session, run)
        if message["role"] == "toolResult":
            result = {"content": message["content"], "details": message.get("details", {})}
            error = {"error": message["content"][0]["text"]} if message["isError"] else {}
            call = {"toolName": message["toolName"], "toolCallId": message["toolCallId"], "params": {}, "result": result}
            self.hook("after_tool_call", call | error | {"runId": run, "durationMs": 84}, session, run)

    def _end(self, session: str, messages: Sequence[Json], run: str, **event: Any) -> None:
        self.hook("agent_end", {"runId": run, "messages": list(messages), "success": True} | event, session, run)
        last = messages[-1]
        if last["role"] != "assistant":
            return  # the model was not asked
        output = {"runId": run, "sessionId": session, "provider": "anthropic", "model": last["model"]}
        answer_texts = [block["text"] for block in last["content"] if block["type"] == "text"]
        self.hook("llm_output", output | {"assistantTexts": answer_texts}, session, run)

    def do(self, action: str) -> Json:
        """Wait until all data is `kept` on disk or `drained` (delivered), or `end` the process; return the plugin's status."""
        status: Json = self._ask({"do": action})["status"]
        return status

    def kill(self) -> None:
        """Kill the process with kill -9."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Wait for the end of the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.stdin.close()
        self._process.wait(PATIENCE)

    def _ask(self, request: Json) -> Json:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request | ({"at": self._at} if self._at else {})) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "node has ended"
        answer: Json = json.loads(line)
        self.logged += answer["logged"]
        return answer


@contextmanager
def host(config: Json, entry: Json | None = None, *, has_transcripts: bool = False) -> Iterator[Host]:
    """Yield a process of OpenClaw, which ends with the context."""
    opened = Host(config, entry, has_transcripts=has_transcripts)
    try:
        yield opened
        opened.do("end")
    except BaseException:
        opened.kill()
        raise
    opened.close()


def entries(transcript: Path) -> list[Json]:
    """Return the lines of a transcript."""
    return [json.loads(line) for line in transcript.read_text("utf-8").splitlines()]


def written(transcript: Path, session: str, began: datetime) -> list[Json]:
    """Return the lines of a transcript as if the session began at this time; each entry is written shortly after its message began."""
    lines = entries(transcript)
    lines[0]["id"] = session
    first = datetime.fromisoformat(lines[0]["timestamp"])
    for line in lines:
        at = began + (datetime.fromisoformat(line["timestamp"]) - first)
        message = line.get("message")
        if message is not None:
            message["timestamp"] = round(at.timestamp() * 1000)
            at += timedelta(milliseconds=LAGS[message["role"]])
        line["timestamp"] = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return lines
