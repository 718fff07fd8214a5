"""`langchain-openai`, as its users write it."""

from __future__ import annotations

import asyncio

import speak
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel
from speak import MODEL


def chat(url: str, **settings: object) -> ChatOpenAI:
    fields = {"max_tokens": 8, "max_retries": 0, **settings}
    return ChatOpenAI(base_url=f"{url}/v1", api_key=speak.KEY, model=MODEL, **fields)


def plain(url: str) -> object:
    answer = chat(url, max_tokens=None).invoke("Say hello in one word.")
    assert answer.usage_metadata["total_tokens"] >= 2
    return answer.content


def stream(url: str) -> object:
    total = None
    for chunk in chat(url, stream_usage=True).stream("Say hello in one word."):
        total = chunk if total is None else total + chunk
    assert total.usage_metadata["output_tokens"] >= 1
    return total.content


def stream_default(url: str) -> object:
    return "".join(chunk.content for chunk in chat(url).stream("Say hello in one word."))


def turns(url: str) -> object:
    model = chat(url)
    messages = [SystemMessage("You are terse."), HumanMessage("Say hello.")]
    messages += [model.invoke(messages), HumanMessage("Again.")]
    messages += [model.invoke(messages), HumanMessage("And again.")]
    return model.invoke(messages).content


def parameters(url: str) -> object:
    model = chat(
        url,
        temperature=0.7,
        top_p=0.9,
        seed=7,
        n=2,
        logprobs=True,
        top_logprobs=3,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logit_bias={100: -100},
        stop=["\n\n"],
        service_tier="auto",
        model_kwargs={"user": "u-1"},
        extra_body={"top_k": 40, "min_p": 0.05},
    )
    [texts] = model.generate([[HumanMessage("Say hello.")]]).generations
    assert len(texts) == 2
    return texts[0].message.response_metadata["logprobs"]["content"][0]


def bound(url: str) -> object:
    return chat(url).bind(stop=["."], logprobs=True).invoke("Say hello.").content


def parts(url: str) -> object:
    messages = [
        HumanMessage([{"type": "text", "text": "Say"}, {"type": "text", "text": "hello."}]),
        AIMessage([{"type": "text", "text": "Hello."}]),
        HumanMessage("Again."),
    ]
    return chat(url).invoke(messages).content


def batch(url: str) -> object:
    return [answer.content for answer in chat(url).batch(["Say one.", "Say two."])]


def later(url: str) -> object:
    async def both() -> list[str]:
        model = chat(url)
        whole = await model.ainvoke("Say hello.")
        return [whole.content, "".join([chunk.content async for chunk in model.astream("Say hello.")])]

    return asyncio.run(both())


def completion(url: str) -> object:
    model = OpenAI(base_url=f"{url}/v1", api_key=speak.KEY, model=MODEL, max_tokens=8, max_retries=0)
    return [model.invoke("Once upon a time"), model.generate(["One,", "A,"]).generations[1][0].text]


def completions(url: str) -> object:
    """Twenty prompts in one request: the package's default for `batch_size`."""
    model = OpenAI(base_url=f"{url}/v1", api_key=speak.KEY, model=MODEL, max_tokens=4, max_retries=0)
    texts = model.generate([f"Chapter {number}:" for number in range(20)]).generations
    assert len(texts) == 20
    return texts[19][0].text


def completion_stream(url: str) -> object:
    model = OpenAI(base_url=f"{url}/v1", api_key=speak.KEY, model=MODEL, max_tokens=8, max_retries=0, stop=["\n"])
    return "".join(model.stream("Once upon a time"))


def structured(url: str) -> object:
    class Greeting(BaseModel):
        word: str

    return chat(url).with_structured_output(Greeting).invoke("Say hello.")


def tools(url: str) -> object:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return chat(url).bind_tools([add]).invoke("What is 1 + 2?")


CASES: list[speak.Case] = [
    plain, stream, stream_default, turns, parameters, bound, parts, batch, later, completion, completions,
    completion_stream, structured, tools,
]  # fmt: skip

if __name__ == "__main__":
    speak.run("langchain-openai", CASES, {"tools": 400})
