"""Judges by name: the API, address, key and price of each.

A judge is named `<judge>/<model>`, such as `openai/gpt-5.4-mini`. The part before the first slash is an entry of `judges:` in the policy or
a built-in judge. The part after it is the model to request from its API. An entry with its own model needs no slash. Any other name is a
model of the Messages API, with the address and key of the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import StringConstraints, model_validator

from audit.cost import MODEL_NAME, ListedPrice, ModelPrice, price_of
from audit.settings_files import PolicyModel

ENVIRONMENT = ""
"""Id of the environment's judge, which `ANTHROPIC_API_KEY` and `ANTHROPIC_BASE_URL` configure."""
JUDGE_ID = r"^[a-z][a-z0-9_-]{0,31}$"
ModelName = Annotated[str, StringConstraints(pattern=MODEL_NAME)]
ApiName = Literal["messages", "chat", "responses", "bedrock", "vertex"]
"""The API of a judge: Messages, Chat Completions, Responses, or Messages in the form of a cloud."""
CLOUDS: frozenset[ApiName] = frozenset(["bedrock", "vertex"])
"""The APIs that need an extra of the installation, and take the cloud's own credentials."""
CloudName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9:.-]{0,63}$")]


class JudgeSettings(PolicyModel):
    """A judge: an API at an address."""

    api: ApiName = "chat"
    """The API that the server speaks: Messages (Anthropic), Chat Completions or Responses (OpenAI and most others), or Messages in the
    form of Amazon Bedrock or Google's Vertex AI."""
    base_url: Annotated[str, StringConstraints(min_length=1, max_length=1000)] | None = None
    """Address of the API. The default is that of Anthropic, of OpenAI, or of the cloud's region."""
    key_env: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")] | None = None
    """Environment variable that holds the key; null for a server that needs none, and for a cloud's own credentials."""
    region: CloudName | None = None
    """Region of Bedrock or Vertex AI. The default is that of AWS_REGION or CLOUD_ML_REGION."""
    cloud_project: CloudName | None = None
    """Google Cloud project of Vertex AI. The default is that of ANTHROPIC_VERTEX_PROJECT_ID."""
    model: ModelName | None = None
    """Model to use if a name gives only the judge."""
    price: ModelPrice | None = None
    """Price of its models, 0 for a server of your own. The default is the listed price of each model."""
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """How much a reasoning model thinks before it answers; null leaves it to the model."""
    batches: bool = True
    """Whether the server has the batch API of its maker: Message Batches or OpenAI's Batch API. Bedrock and Vertex AI have neither."""

    @model_validator(mode="after")
    def _check_cloud(self) -> Self:
        if self.region is not None and self.api not in CLOUDS:
            raise ValueError("region is only for api: bedrock and api: vertex")
        if self.cloud_project is not None and self.api != "vertex":
            raise ValueError("cloudProject is only for api: vertex")
        return self


_FREE = ModelPrice(input=0, output=0, batch_input=0, batch_output=0)
BUILT_IN: Mapping[str, JudgeSettings] = {
    "openai": JudgeSettings(api="chat", base_url="https://api.openai.com/v1", key_env="OPENAI_API_KEY"),
    "gemini": JudgeSettings(
        api="chat", base_url="https://generativelanguage.googleapis.com/v1beta/openai", key_env="GEMINI_API_KEY", batches=False
    ),
    "openrouter": JudgeSettings(
        api="chat", base_url="https://openrouter.ai/api/v1", key_env="OPENROUTER_API_KEY", batches=False
    ),
    "ollama": JudgeSettings(api="chat", base_url="http://127.0.0.1:11434/v1", price=_FREE, batches=False),
    "vllm": JudgeSettings(api="chat", base_url="http://127.0.0.1:8000/v1", price=_FREE, batches=False),
}
"""Judges that need no entry in the policy; an entry of the same name replaces one."""
_ANTHROPIC = "anthropic"
"""Another name of the environment's judge, used before a slash."""


@dataclass(frozen=True, slots=True)
class ResolvedJudge:
    """A judge and its model, resolved from a name."""

    name: str
    """The full name, as questions and records store it."""
    judge_id: str
    """The entry of the policy or the built-in judge; `ENVIRONMENT` for the environment's judge."""
    model: str
    """The model to request from the API."""
    settings: JudgeSettings | None
    """None for the environment's judge."""
    price: ModelPrice | None
    """None if unknown."""

    @property
    def has_batches(self) -> bool:
        """Whether its server has a batch API."""
        return self.settings is None or (self.settings.batches and self.settings.api not in CLOUDS)


def resolve_judge(name: str, judges: Mapping[str, JudgeSettings], prices: Mapping[str, ListedPrice]) -> ResolvedJudge:
    """Return the judge with a name. A name without a known judge is a model of the environment's judge."""
    judge_id, slash, model_in_name = name.partition("/")
    settings = {**BUILT_IN, **judges}.get(judge_id)
    model = model_in_name
    if settings is not None and not model:
        model = settings.model or ""
    if settings is None or not model:
        return _resolve_in_environment(model_in_name if slash and judge_id == _ANTHROPIC else name, name, prices)
    full_name = f"{judge_id}/{model}"
    price = settings.price or prices.get(full_name)
    if price is None and settings.api not in CLOUDS:
        price = price_of(model, prices)  # A cloud asks its own price, which depends on the region.
    return ResolvedJudge(full_name, judge_id, model, settings, price)


def _resolve_in_environment(model: str, name: str, prices: Mapping[str, ListedPrice]) -> ResolvedJudge:
    return ResolvedJudge(name, ENVIRONMENT, model, None, price_of(model, prices))
