"""Kinds of lines of a Codex rollout that are skipped, as of version 0.169.0."""

from __future__ import annotations

IGNORED_LINES = frozenset(
    {
        "world_state",
        "inter_agent_communication_metadata",
        "state",
    }
)
"""Kinds of lines that say nothing of what the agent did."""
IGNORED_ITEMS = frozenset(
    {
        "compaction",
        "compaction_trigger",
        "context_compaction",
        "configuration_update",
        "ghost_snapshot",
        "other",
        "additional_tools",
    }
)
"""Kinds of `response_item` that hold nothing that can be read."""
SHOWN = frozenset(
    {
        "agent_message",
        "agent_message_content_delta",
        "agent_message_delta",
        "agent_reasoning",
        "agent_reasoning_delta",
        "agent_reasoning_raw_content",
        "agent_reasoning_section_break",
        "background_event",
        "context_compacted",
        "deprecation_notice",
        "entered_review_mode",
        "exec_approval_request",
        "exec_command_begin",
        "exec_command_output_delta",
        "exited_review_mode",
        "hook_completed",
        "hook_started",
        "image_generation_begin",
        "image_generation_end",
        "item_started",
        "mcp_startup_complete",
        "mcp_startup_update",
        "mcp_tool_call_begin",
        "model_reroute",
        "patch_apply_begin",
        "patch_apply_updated",
        "plan_delta",
        "plan_update",
        "raw_response_completed",
        "raw_response_item",
        "reasoning_content_delta",
        "session_configured",
        "shutdown_complete",
        "skills_update_available",
        "sub_agent_activity",
        "terminal_interaction",
        "thread_goal_updated",
        "thread_name_updated",
        "thread_rolled_back",
        "thread_settings_applied",
        "turn_diff",
        "undo_completed",
        "undo_started",
        "user_message",
        "view_image_tool_call",
        "warning",
        "web_search_begin",
        "web_search_end",
        "collab_agent_spawn_begin",
        "collab_agent_spawn_end",
        "collab_agent_interaction_begin",
        "collab_agent_interaction_end",
        "collab_waiting_begin",
        "collab_waiting_end",
        "collab_close_begin",
        "collab_close_end",
        "dynamic_tool_call_request",
        "dynamic_tool_call_response",
        "elicitation_request",
        "elicitation_abandoned",
        "guardian_assessment",
    }
)
"""Kinds of `event_msg` that tell for the screen what other lines say."""
