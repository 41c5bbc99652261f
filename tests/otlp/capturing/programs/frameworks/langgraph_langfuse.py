"""The agent of `langgraph_agent`, traced by Langfuse's callback."""

from __future__ import annotations

from langfuse import get_client, propagate_attributes
from langfuse.langchain import CallbackHandler
from programs import numbers
from programs.frameworks.langgraph_agent import talk

if __name__ == "__main__":
    with propagate_attributes(session_id=numbers.SESSION):
        talk(callbacks=[CallbackHandler()])
    get_client().flush()
