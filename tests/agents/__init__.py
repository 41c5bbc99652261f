"""Other coding agents for tests: the real Claude Code and Codex, each run against a stand-in for its paid model.

`claude_code` and `codex` run the programs with folders of their own; `responses` is the stand-in that Codex asks. Claude Code
asks the one of `tests/openclaw/provider.py`. Nothing here imitates the programs.
"""
