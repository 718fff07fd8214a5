"""The official `openai` package, as its users write it."""

from __future__ import annotations

import speak
from openai import OpenAI
from speak import MODEL

ASKED = {"role": "user", "content": "Say hello in one word."}


def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key=speak.KEY, max_retries=0)


def plain(url: str) -> object:
    answer = client(url).chat.completions.create(model=MODEL, messages=[ASKED])
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    return answer.choices[0].message.content


def stream(url: str) -> object:
    chunks = list(
        client(url).chat.completions.create(
            model=MODEL, messages=[ASKED], stream=True, stream_options={"include_usage": True}, max_tokens=8
        )
    )
    assert chunks[-1].usage.completion_tokens >= 1
    assert chunks[-1].choices == []
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])


def turns(url: str) -> object:
    """The answer goes back as the object that came, then as the dictionary that the object dumps to."""
    messages = [{"role": "system", "content": "You are terse."}, ASKED]
    api = client(url).chat.completions
    first = api.create(model=MODEL, messages=messages, max_tokens=8).choices[0].message
    messages += [first, {"role": "user", "content": "Again."}]
    second = api.create(model=MODEL, messages=messages, max_tokens=8).choices[0].message
    messages += [second.model_dump(), {"role": "user", "content": "And again."}]
    return api.create(model=MODEL, messages=messages, max_tokens=8).choices[0].message.content


def parameters(url: str) -> object:
    answer = client(url).chat.completions.create(
        model=MODEL,
        messages=[ASKED],
        temperature=0.7,
        top_p=0.9,
        max_completion_tokens=8,
        stop=["\n\n", "END"],
        seed=7,
        n=2,
        logprobs=True,
        top_logprobs=3,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"100": -100, "2000": 1.5},
    )
    assert len(answer.choices) == 2
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 3
    return answer.choices[1].message.content


def hints(url: str) -> object:
    """Fields that change nothing (hints), and old names of fields."""
    answer = client(url).chat.completions.create(
        model=MODEL,
        messages=[ASKED],
        max_tokens=8,
        user="u-1",
        metadata={"run": "1"},
        safety_identifier="s-1",
        prompt_cache_key="k-1",
        store=False,
        service_tier="auto",
        extra_headers={"X-Trace": "1"},
    )
    return answer.service_tier


def parts(url: str) -> object:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "You are terse."}]},
        {"role": "user", "content": [{"type": "text", "text": "Say"}, {"type": "text", "text": "hello."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]},
        {"role": "user", "content": "Again."},
    ]
    return client(url).chat.completions.create(model=MODEL, messages=messages, max_tokens=8).choices[0].message.content


def neutral(url: str) -> object:
    """The API's own defaults, spelt out."""
    answer = client(url).chat.completions.create(
        model=MODEL,
        messages=[ASKED],
        max_completion_tokens=8,
        audio=None,
        frequency_penalty=0,
        logit_bias={},
        logprobs=False,
        modalities=["text"],
        n=1,
        parallel_tool_calls=True,
        presence_penalty=0,
        prediction=None,
        response_format={"type": "text"},
        stop=None,
        stream=False,
        temperature=1,
        tool_choice="none",
        tools=[],
        top_p=1,
        verbosity="medium",
    )
    return answer.choices[0].message.content


def vllm(url: str) -> object:
    """Parameters beyond OpenAI's, as callers of vLLM send them."""
    answer = client(url).chat.completions.create(
        model=MODEL,
        messages=[ASKED],
        max_tokens=8,
        extra_body={
            "top_k": 40,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "min_tokens": 2,
            "ignore_eos": True,
            "stop_token_ids": [2],
            "skip_special_tokens": True,
        },
    )
    return answer.choices[0].message.content


def prefill(url: str) -> object:
    messages = [ASKED, {"role": "assistant", "content": "Hel"}]
    answer = client(url).chat.completions.create(
        model=MODEL,
        messages=messages,
        max_tokens=8,
        extra_body={"continue_final_message": True, "add_generation_prompt": False},
    )
    return answer.choices[0].message.content


def helper(url: str) -> object:
    """The package's own accumulator over a stream of two choices with logprobs."""
    with client(url).chat.completions.stream(
        model=MODEL, messages=[ASKED], n=2, logprobs=True, top_logprobs=2, max_completion_tokens=6
    ) as events:
        for _ in events:
            pass
        answer = events.current_completion_snapshot  # the final one raises when a text was cut at its length
    assert {choice.finish_reason for choice in answer.choices} <= {"stop", "length"}
    return [choice.message.content for choice in answer.choices]


def parsed(url: str) -> object:
    """The accumulator's message goes back, with the field `parsed` that the package adds to it."""
    api = client(url).chat.completions
    with api.stream(model=MODEL, messages=[ASKED], max_completion_tokens=6) as events:
        for _ in events:
            pass
        message = events.current_completion_snapshot.choices[0].message
    assert "parsed" in message.model_dump()
    messages = [ASKED, message, {"role": "user", "content": "Again."}]
    api.create(model=MODEL, messages=messages, max_tokens=8)
    messages[1] = message.model_dump()
    return api.create(model=MODEL, messages=messages, max_tokens=8).choices[0].message.content


def completion(url: str) -> object:
    answer = client(url).completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8, echo=True)
    assert answer.choices[0].text.startswith("Once upon a time")
    return answer.choices[0].text


def completion_lists(url: str) -> object:
    api = client(url).completions
    texts = api.create(model=MODEL, prompt=["One, two,", "A, B,"], max_tokens=4, n=2, temperature=0.5)
    assert len(texts.choices) == 4
    ids = api.create(model=MODEL, prompt=[28120, 28, 827, 28], max_tokens=4, logprobs=2, stop="\n", seed=1)
    assert len(ids.choices[0].logprobs.tokens) == ids.usage.completion_tokens
    both = api.create(model=MODEL, prompt=[[28120, 28], [49, 28]], max_tokens=4, presence_penalty=1, user="u-1")
    return [choice.text for choice in both.choices]


def completion_stream(url: str) -> object:
    chunks = list(
        client(url).completions.create(
            model=MODEL,
            prompt="Once upon a time",
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[-1].usage.completion_tokens >= 1
    return "".join(chunk.choices[0].text for chunk in chunks[:-1])


def models(url: str) -> object:
    found = client(url).models
    names = [model.id for model in found.list()]
    assert found.retrieve(MODEL).id == MODEL
    return names


def tools(url: str) -> object:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    return client(url).chat.completions.create(model=MODEL, messages=[ASKED], tools=[tool])


def responses(url: str) -> object:
    return client(url).responses.create(model=MODEL, input="Say hello.")


def embeddings(url: str) -> object:
    return client(url).embeddings.create(model=MODEL, input="hello")


CASES: list[speak.Case] = [
    plain, stream, turns, parameters, hints, parts, neutral, vllm, prefill, helper, parsed,
    completion, completion_lists, completion_stream, models, tools, responses, embeddings,
]  # fmt: skip

if __name__ == "__main__":
    speak.run("openai", CASES, {"tools": 400, "responses": 404})
