"""The conversation that every framework has: a tool that answers, the same streamed where the framework streams, a tool that raises."""

from __future__ import annotations

SESSION = "numbers-session-1"
AGENT = "numbers-agent"
VERSION = "2.1.0"
MODEL = "gpt-5.1"
GEMINI = "gemini-3-flash"
INSTRUCTIONS = "You double numbers. Use the tool."

QUESTION = "What is twice 12?"
STREAMED_QUESTION = "And what is twice 30?"
FAILING_QUESTION = "Then what is twice 13?"
QUESTIONS = (QUESTION, STREAMED_QUESTION, FAILING_QUESTION)

ANSWERS = ("Twice 12 is 24.", "Twice 30 is 60.", "I cannot double 13.")
NUMBERS = (12, 30, 13)
ERROR = "13 cannot be doubled here"


def double(number: int) -> str:
    """Double a number.

    Args:
        number: The number to double.
    """
    if number == NUMBERS[2]:
        raise ValueError(ERROR)
    return f"{number} doubled is {2 * number}"
