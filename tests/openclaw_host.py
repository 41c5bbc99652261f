"""OpenClaw as the plugin sees it: node with the plugin in it, whose hooks are called in the order that OpenClaw calls them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servers import PATIENCE, ROOT

PLUGIN = ROOT / "examples" / "openclaw-plugin"
NODE = shutil.which("node")
ALLOWED = {"hooks": {"allowConversationAccess": True}}
QUICK = {"flushMs": 5, "retryBaseMs": 20, "retryMaxMs": 60, "heartbeatSeconds": 0}
Json = dict[str, Any]


class Host:
    """One process of OpenClaw. `logged` is what the plugin said, `slowest` the longest any hook took, in milliseconds."""

    def __init__(self, config: Json, entry: Json | None = None, *, has_transcripts: bool = False) -> None:
        assert NODE is not None
        self._process = subprocess.Popen(
            [NODE, str(PLUGIN / "unit" / "host.js")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.logged: list[str] = []
        self.slowest = 0.0
        wanted = {"config": QUICK | config, "entry": ALLOWED if entry is None else entry, "hasTranscripts": has_transcripts}
        self._ask(wanted)

    def hook(self, name: str, event: Json, session: str, run: str = "run-1") -> None:
        """Call a hook; it answers nothing, as OpenClaw wants it of one that only looks on."""
        context = {"agentId": "main", "sessionId": session, "sessionKey": f"agent:main:{session}", "runId": run}
        answer = self._ask({"hook": name, "event": event, "context": context})
        assert answer["returned"] is None
        self.slowest = max(self.slowest, answer["ms"])

    def transcript(self, session: str, entry: Json) -> None:
        """Tell that a message was written to the transcript."""
        update = {"sessionKey": f"agent:main:{session}", "agentId": "main", "sessionId": session}
        self._ask({"update": update | {"message": entry["message"], "messageId": entry["id"]}})

    def turn(self, session: str, messages: Sequence[Json], run: str = "run-1", **event: Any) -> None:
        """A run from its first call of a tool to its end; `messages` are all of the session, the last user message begins the run."""
        asked = max(number for number, message in enumerate(messages) if message["role"] == "user")
        for message in messages[asked + 1 :]:
            for block in message["content"] if message["role"] == "assistant" else ():
                if block["type"] == "toolCall":
                    call = {"toolName": block["name"], "toolCallId": block["id"], "params": block["arguments"], "runId": run}
                    self.hook("before_tool_call", call, session, run)
            if message["role"] == "toolResult":
                result = {"content": message["content"], "details": message.get("details", {}), "isError": message["isError"]}
                call = {"toolName": message["toolName"], "toolCallId": message["toolCallId"], "params": {}, "result": result}
                self.hook("after_tool_call", call | {"runId": run, "durationMs": 84}, session, run)
        self.hook("agent_end", {"runId": run, "messages": list(messages), "success": True} | event, session, run)
        last = messages[-1]
        if last["role"] != "assistant":
            return  # the model was not asked
        output = {"runId": run, "sessionId": session, "provider": "anthropic", "model": last["model"]}
        said = [block["text"] for block in last["content"] if block["type"] == "text"]
        self.hook("llm_output", output | {"assistantTexts": said}, session, run)

    def do(self, what: str) -> Json:
        """Wait until all is `kept` on disk, or `drained`, that is delivered, or `end` the process; the plugin's status."""
        status: Json = self._ask({"do": what})["status"]
        return status

    def kill(self) -> None:
        """End it at once, by kill -9."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Wait until it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.stdin.close()
        self._process.wait(PATIENCE)

    def _ask(self, wanted: Json) -> Json:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "node has ended"
        answer: Json = json.loads(line)
        self.logged += answer["logged"]
        return answer


@contextmanager
def host(config: Json, entry: Json | None = None, *, has_transcripts: bool = False) -> Iterator[Host]:
    """A process of OpenClaw that has ended when the context has."""
    opened = Host(config, entry, has_transcripts=has_transcripts)
    try:
        yield opened
        opened.do("end")
    except BaseException:
        opened.kill()
        raise
    opened.close()


def entries(transcript: Path) -> list[Json]:
    """The lines of a transcript."""
    return [json.loads(line) for line in transcript.read_text("utf-8").splitlines()]
