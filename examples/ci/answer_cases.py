"""Answer frozen cases with a command, and write the results for `driftline gate`.

python answer_cases.py CASES RESULTS -- COMMAND [ARGUMENT …]

The command is run once for each case, with one JSON object on its standard input:

{"case_id": "…", "messages": [{"role": "user", "content": "…"}, …], "tool_calls": [{"name": "…", "arguments": "…", "result": "…", "outcome": "ok"}]}

`tool_calls` are those that were recorded, so that the build can be run without real tools. The command prints one JSON object: `agent_response`
and, if known, `agent_thinking`, `tool_calls`, `agent_model`, `input_tokens` and `output_tokens`.
"""

import json
import subprocess
import sys
from pathlib import Path

import yaml


def main(cases_file: str, results_file: str, command: list[str]) -> None:
    """Run the command on every case, in the order of the file."""
    cases = yaml.safe_load(Path(cases_file).read_text("utf-8"))["cases"]
    with Path(results_file).open("w", encoding="utf-8") as results:
        for case in cases:
            task = {
                "case_id": case["case_id"],
                "messages": case["input"]["messages"],
                "tool_calls": case["recorded"].get("tool_calls", []),
            }
            answered = subprocess.run(command, input=json.dumps(task), capture_output=True, text=True, check=True)
            results.write(json.dumps(json.loads(answered.stdout) | {"case_id": case["case_id"]}) + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 5 or sys.argv[3] != "--":
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], sys.argv[4:])
