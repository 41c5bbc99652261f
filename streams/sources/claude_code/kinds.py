"""Kinds of lines and blocks of a Claude Code transcript that are known, as of version 2.1.330."""

from __future__ import annotations

BOOKKEEPING = frozenset(
    {
        "agent-color",
        "agent-name",
        "agent-setting",
        "ai-title",
        "api-request",
        "api-request-blob",
        "api-request-resumed",
        "api-request-shape",
        "artifact-autoreact-ledger",
        "artifact-comment-monitor",
        "atis-latch",
        "attribution-snapshot",
        "bridge-session",
        "content-replacement",
        "continued-in",
        "cost-state",
        "custom-title",
        "data-flow-incomplete",
        "data-flow-records",
        "derived-from",
        "dev-mods",
        "ended-by-model",
        "file-history-delta",
        "file-history-snapshot",
        "fork-context-ref",
        "frame-link",
        "history-suppression",
        "host-row",
        "hybrid-organization",
        "isolation-latch",
        "last-prompt",
        "memory-mode",
        "mode",
        "observer-ref",
        "permission-mode",
        "pr-link",
        "queue-operation",
        "relocated",
        "repl-mode",
        "resume-head-vouch",
        "session-owner",
        "summary",
        "tag",
        "tools-used",
        "worktree-state",
    }
)
"""Kinds of lines that are no part of the conversation."""
NOTICES = frozenset(
    {
        "agents_killed",
        "away_summary",
        "background_tasks_changed",
        "bridge_status",
        "elicitation_complete",
        "file_snapshot",
        "files_persisted",
        "hook_progress",
        "hook_response",
        "hook_started",
        "informational",
        "init",
        "local_command",
        "local_command_output",
        "memory_saved",
        "model_consent_fallback",
        "model_fallback",
        "permission_retry",
        "post_turn_summary",
        "read_divider",
        "scheduled_task_fire",
        "session_state_changed",
        "status",
        "stop_hook_summary",
        "task_notification",
        "task_progress",
        "task_started",
        "task_updated",
        "thinking",
        "thinking_tokens",
        "turn_duration",
    }
)
"""Subtypes of `system` lines that say nothing of what the agent did."""
USER_BLOCKS = frozenset(
    {
        "text",
        "image",
        "document",
        "tool_result",
        "tool_reference",
        "search_result",
    }
)
"""Types of blocks in a message to the model."""
ASSISTANT_BLOCKS = frozenset(
    {
        "text",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "server_tool_use",
        "mcp_tool_use",
        "mcp_tool_result",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "advisor_tool_result",
        "container_upload",
        "fallback",
        "image",
        "document",
    }
)
"""Types of blocks in a message of the model."""
