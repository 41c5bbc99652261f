"""Scripted conversations for the stand-in provider: healthy ones, and ones with one planted failure."""

from openclaw.plays.content import Conversation, Turn
from openclaw.plays.healthy import KINDS, healthy
from openclaw.plays.planted import PLANTS, SMALL, build_failing_conversation

__all__ = ["KINDS", "PLANTS", "SMALL", "Conversation", "Turn", "build_failing_conversation", "healthy"]
