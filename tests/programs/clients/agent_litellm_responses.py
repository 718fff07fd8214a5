"""litellm as a client of the Responses API: its OpenAI provider, for any base URL."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is fetched from the network

import litellm
import speak
import weather
from pydantic import BaseModel
from responses_loop import Loop, text_of
from speak import MODEL
from weather import ask

litellm.suppress_debug_info = True
# Of a model that litellm does not know, it asks for whole responses and makes the events of a stream itself, and it
# refuses `reasoning`.
KNOWN = {"litellm_provider": "openai", "mode": "responses"}
KNOWN |= dict.fromkeys(["supports_native_streaming", "supports_reasoning"], True)
litellm.register_model({f"openai/{MODEL}": KNOWN})


class Forecast(BaseModel):
    """A forecast."""

    city: str
    sky: Literal["clear", "grey"]


def respond(url: str, **fields: Any) -> Any:
    return litellm.responses(model=f"openai/{MODEL}", api_base=f"{url}/v1", api_key=speak.KEY, max_retries=0, **fields)


def create(url: str, **fields: Any) -> dict[str, Any]:
    return respond(url, **fields).model_dump(exclude_none=True)


def stream(url: str, **fields: Any) -> dict[str, Any]:
    events = list(respond(url, stream=True, **fields))
    assert events[-1].type == "response.completed"
    return events[-1].response.model_dump(exclude_none=True)


def schema(url: str) -> object:
    response = create(url, input=ask("schema"), text_format=Forecast)
    assert json.loads(text_of(response)) == weather.FORECAST
    return text_of(response)


CASES: list[speak.Case] = [*Loop(create, stream).cases(), schema]

if __name__ == "__main__":
    speak.run("litellm", CASES, {}, also=("openai",))
