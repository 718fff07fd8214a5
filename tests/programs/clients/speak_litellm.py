"""`litellm` as a library, with each of the providers that a caller of Laneway would name."""

from __future__ import annotations

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch one at import

import litellm
import speak
from speak import MODEL

litellm.telemetry = False
litellm.suppress_debug_info = True
ASKED = {"role": "user", "content": "Say hello in one word."}


def ask(url: str, **fields: object) -> litellm.ModelResponse:
    asked = {"model": f"openai/{MODEL}", "messages": [ASKED], "num_retries": 0, "max_retries": 0, **fields}
    return litellm.completion(api_base=f"{url}/v1", api_key=speak.KEY, **asked)


def plain(url: str) -> object:
    answer = ask(url)
    assert answer.usage.total_tokens >= 2
    return answer.choices[0].message.content


def stream(url: str) -> object:
    chunks = list(ask(url, stream=True, stream_options={"include_usage": True}, max_tokens=8))
    assert chunks[-1].usage.completion_tokens >= 1
    return litellm.stream_chunk_builder(chunks).choices[0].message.content


def turns(url: str) -> object:
    messages = [{"role": "system", "content": "You are terse."}, ASKED]
    first = ask(url, messages=messages, max_tokens=8).choices[0].message
    messages += [first, {"role": "user", "content": "Again."}]
    second = ask(url, messages=messages, max_tokens=8).choices[0].message
    messages += [second.model_dump(), {"role": "user", "content": "And again."}]
    return ask(url, messages=messages, max_tokens=8).choices[0].message.content


def parameters(url: str) -> object:
    answer = ask(
        url,
        temperature=0.7,
        top_p=0.9,
        max_completion_tokens=8,
        stop=["\n\n"],
        seed=7,
        n=2,
        logprobs=True,
        top_logprobs=3,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logit_bias={"100": -100},
        user="u-1",
    )
    assert len(answer.choices) == 2
    return answer.choices[0].logprobs


def parts(url: str) -> object:
    messages = [{"role": "user", "content": [{"type": "text", "text": "Say"}, {"type": "text", "text": "hello."}]}]
    return ask(url, messages=messages, max_tokens=8).choices[0].message.content


def vllm(url: str) -> object:
    """The provider for vLLM's servers, with parameters of theirs."""
    answer = ask(
        url, model=f"hosted_vllm/{MODEL}", max_tokens=8, top_k=40, min_p=0.05, repetition_penalty=1.1, min_tokens=2
    )
    return answer.choices[0].message.content


def hints(url: str) -> object:
    return ask(url, max_tokens=8, extra_body={"metadata": {"run": "1"}, "service_tier": "default"}).service_tier


def completion(url: str) -> object:
    answer = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}",
        prompt="Once upon a time",
        api_base=f"{url}/v1",
        api_key=speak.KEY,
        max_tokens=8,
        temperature=0.5,
        max_retries=0,
    )
    return answer.choices[0].text


def completion_stream(url: str) -> object:
    chunks = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}",
        prompt=["Once upon a time"],
        api_base=f"{url}/v1",
        api_key=speak.KEY,
        max_tokens=8,
        stream=True,
        max_retries=0,
    )
    return "".join(chunk.choices[0].text or "" for chunk in chunks)


def anthropic(url: str) -> object:
    """Anthropic's shape, by litellm's own translation."""
    messages = [{"role": "system", "content": "You are terse."}, ASKED]
    answer = litellm.completion(
        model=f"anthropic/{MODEL}",
        messages=messages,
        api_base=url,
        api_key=speak.KEY,
        max_tokens=8,
        temperature=0.5,
        stop=["END"],
        max_retries=0,
    )
    return answer.choices[0].message.content


def anthropic_stream(url: str) -> object:
    chunks = litellm.completion(
        model=f"anthropic/{MODEL}",
        messages=[ASKED],
        api_base=url,
        api_key=speak.KEY,
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
        max_retries=0,
    )
    return litellm.stream_chunk_builder(list(chunks)).choices[0].message.content


def overflow(url: str) -> object:
    """litellm knows an exceeded context by the words of the refusal; callers of it trim or fall back then."""
    try:
        ask(url, max_tokens=1_000_000)
    except litellm.ContextWindowExceededError as error:
        return error.message
    raise AssertionError("answered")


def tools(url: str) -> object:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    return ask(url, tools=[tool])


CASES: list[speak.Case] = [
    plain, stream, turns, parameters, parts, vllm, hints, completion, completion_stream, anthropic, anthropic_stream,
    overflow, tools,
]  # fmt: skip

if __name__ == "__main__":
    speak.run("litellm", CASES, {"tools": 400})
