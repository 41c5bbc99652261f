"""DSPy's ReAct, instrumented by OpenInference."""

from __future__ import annotations

import os

import dspy
from openinference.instrumentation import using_session
from openinference.instrumentation.dspy import DSPyInstrumentor
from programs import numbers
from programs.exporting import export_spans


def talk() -> None:
    """Have the conversation; each question is on its own."""
    dspy.configure(
        lm=dspy.LM(f"openai/{numbers.MODEL}", api_base=os.environ["OPENAI_BASE_URL"], api_key="not-a-key", cache=False)
    )
    agent = dspy.ReAct("question -> answer", tools=[numbers.double])
    for question in numbers.QUESTIONS:
        with using_session(numbers.SESSION):
            agent(question=question)


if __name__ == "__main__":
    provider = export_spans()
    DSPyInstrumentor().instrument(tracer_provider=provider)
    talk()
    provider.shutdown()
