"""Other coding agents for tests: the real Claude Code and Codex, each run against a stand-in for its paid model.

`claude_code` and `codex` run the programs with folders of their own; Codex asks the stand-in of
`tests/support/model_apis/responses.py`, Claude Code that of `tests/support/model_apis/messages.py`. Nothing here imitates the programs.
"""
