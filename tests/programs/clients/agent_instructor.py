"""instructor over both SDKs: a pydantic class from tools, JSON and a schema, streamed in part, asked for again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import instructor
import speak
from anthropic import Anthropic
from instructor import Mode
from instructor.core.exceptions import IncompleteOutputException
from openai import OpenAI
from pydantic import BaseModel, field_validator
from speak import MODEL
from weather import FORECAST, MAX_TOKENS_CUT, ask


class Forecast(BaseModel):
    """A forecast."""

    city: str
    sky: Literal["clear", "grey"]


class CheckedForecast(Forecast):
    """A forecast of a city. A schema cannot say what is checked."""

    @field_validator("city")
    @classmethod
    def is_name(cls, city: str) -> str:
        if not city.istitle():
            raise ValueError("a city begins with a capital letter")
        return city


def api(url: str, mode: Mode) -> instructor.Instructor:
    return instructor.from_openai(OpenAI(base_url=f"{url}/v1", api_key=speak.KEY, max_retries=0), mode=mode)


def asked(case: str, **settings: object) -> dict[str, object]:
    messages = [{"role": "user", "content": ask(case)}]
    return {"model": MODEL, "messages": messages, "max_tokens": 200, "max_retries": 0} | settings


def forecast(url: str) -> object:
    answer = api(url, Mode.TOOLS).create(response_model=Forecast, **asked("forecast"))
    assert answer.model_dump() == FORECAST
    return answer


def strict(url: str) -> object:
    answer = api(url, Mode.TOOLS_STRICT).create(response_model=Forecast, **asked("forecast"))
    assert answer.model_dump() == FORECAST
    return answer


def streamed(url: str) -> object:
    pieces = list(api(url, Mode.TOOLS).create_partial(response_model=Forecast, **asked("forecast_stream")))
    assert pieces[-1].model_dump() == FORECAST
    return pieces[-1]


def retry(url: str) -> object:
    """The first answer follows the schema, and is not valid: its call goes back with an error as its result."""
    answer = api(url, Mode.TOOLS).create(response_model=CheckedForecast, **asked("forecast_retry", max_retries=2))
    assert answer.model_dump() == FORECAST
    return answer


def parallel(url: str) -> object:
    found = list(api(url, Mode.PARALLEL_TOOLS).create(response_model=Iterable[Forecast], **asked("forecast_parallel")))
    assert [one.city for one in found] == ["Paris", "Rome"]
    return found


def json(url: str) -> object:
    answer = api(url, Mode.JSON).create(response_model=Forecast, **asked("schema"))
    assert answer.model_dump() == FORECAST
    return answer


def json_schema(url: str) -> object:
    answer = api(url, Mode.JSON_SCHEMA).create(response_model=Forecast, **asked("schema"))
    assert answer.model_dump() == FORECAST
    return answer


def markdown(url: str) -> object:
    answer = api(url, Mode.MD_JSON).create(response_model=Forecast, **asked("forecast_markdown"))
    assert answer.model_dump() == FORECAST
    return answer


def cut(url: str) -> object:
    """instructor raises when the answer ended with `length`."""
    settings = asked("forecast_cut", max_tokens=MAX_TOKENS_CUT)
    try:
        return api(url, Mode.TOOLS).create(response_model=Forecast, **settings)
    except IncompleteOutputException as error:
        return type(error).__name__


def anthropic_api(url: str, mode: Mode) -> instructor.Instructor:
    return instructor.from_anthropic(Anthropic(base_url=url, api_key=speak.KEY, max_retries=0), mode=mode)


def anthropic_forecast(url: str) -> object:
    answer = anthropic_api(url, Mode.ANTHROPIC_TOOLS).create(response_model=Forecast, **asked("forecast"))
    assert answer.model_dump() == FORECAST
    return answer


def anthropic_retry(url: str) -> object:
    settings = asked("forecast_retry", max_retries=2)
    answer = anthropic_api(url, Mode.ANTHROPIC_TOOLS).create(response_model=CheckedForecast, **settings)
    assert answer.model_dump() == FORECAST
    return answer


def anthropic_json(url: str) -> object:
    answer = anthropic_api(url, Mode.ANTHROPIC_JSON).create(response_model=Forecast, **asked("schema"))
    assert answer.model_dump() == FORECAST
    return answer


CASES: list[speak.Case] = [
    forecast,
    strict,
    streamed,
    retry,
    parallel,
    json,
    json_schema,
    markdown,
    cut,
    anthropic_forecast,
    anthropic_retry,
    anthropic_json,
]

if __name__ == "__main__":
    speak.run("instructor", CASES, {}, also=("openai", "anthropic"))
