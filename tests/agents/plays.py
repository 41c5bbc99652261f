"""What the stand-ins for the paid models say to each question of the tests."""

from __future__ import annotations

from support.model_apis.messages import SUMMARY, Call, Play, Step

NEVER = 10_000
"""Failures that no program outlasts."""

CLAUDE_CODE = {
    "How many files are here?": Play(
        [
            Step(
                "Let me look.", thinking="I should list.", calls=[Call("Bash", {"command": "echo none", "description": "List"})]
            ),
            Step("There are none."),
        ]
    ),
    "Try what fails.": Play(
        [
            Step(
                calls=[
                    Call("Bash", {"command": "echo oops >&2; exit 3", "description": "Fail"}),
                    Call("Read", {"file_path": "/nonexistent/file"}),
                ]
            ),
            Step("It failed."),
        ]
    ),
    "Are you busy?": Play([Step("At last.", failures=1)]),
    "Ask a helper.": Play(
        [
            Step(
                calls=[
                    Call("Agent", {"description": "Look", "prompt": "Helper: look around.", "subagent_type": "general-purpose"})
                ]
            ),
            Step("The helper is at work."),
        ]
    ),
    "Helper: look around.": Play(
        [Step(calls=[Call("Bash", {"command": "echo here", "description": "Look"})]), Step("I found nothing.")]
    ),
    "<task-notification>": Play([Step("The helper found nothing.")]),
    "Go another way.": Play([Step("This is another way.")]),
    "Which model are you?": Play([Step("Another one.")]),
    "Nothing works.": Play([Step("never", failures=NEVER, status=400)]),
}

CODEX = {
    "How many files are here?": Play(
        [
            Step("Let me look.", thinking="I should list.", calls=[Call("exec_command", {"cmd": "echo none"})]),
            Step("There are none."),
        ]
    ),
    "Try what fails.": Play(
        [Step(calls=[Call("exec_command", {"cmd": "echo oops >&2; exit 3"}), Call("no_such_tool", {})]), Step("It failed.")]
    ),
    "Are you busy?": Play([Step("At last.", failures=1, status=503)]),
    "Go another way.": Play([Step("This is another way.")]),
    "Which model are you?": Play([Step("Another one.")]),
    "Ask a helper.": Play(
        [
            Step(calls=[Call("multi_agent_v1/spawn_agent", {"message": "Helper: look around."})]),
            # Codex ends with its first agent, whatever the others do.
            Step("The helper is done.", after="Helper: look around.", delay=2.0),
        ]
    ),
    "Helper: look around.": Play([Step("I found nothing.")]),
    "Read a lot.": Play([Step(calls=[Call("exec_command", {"cmd": "seq 1 20000", "max_output_tokens": 9000})])]),
    # The program asks for a summary, and goes on with it in the place of what it summed up.
    "CONTEXT CHECKPOINT": Play([SUMMARY]),
    SUMMARY.text.partition("\n")[0]: Play([Step("I read a lot.")]),
    "Nothing works.": Play([Step("never", failures=NEVER, status=400)]),
    "Take your time.": Play([Step("Too late.", delay=120.0)]),
}
