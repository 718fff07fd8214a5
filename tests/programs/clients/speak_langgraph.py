"""LangGraph's agents over `langchain-openai`, as their users write them: an agent's name is in its messages."""

from __future__ import annotations

import speak
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from speak import MODEL


def chat(url: str) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{url}/v1", api_key=speak.KEY, model=MODEL, max_tokens=8, max_retries=0)


def agents(url: str) -> object:
    """Two named agents in a graph that remembers, three turns."""
    graph = StateGraph(MessagesState)
    for name in ("writer", "critic"):
        graph.add_node(name, create_react_agent(chat(url), [], prompt="You are terse.", name=name))
    graph.add_edge(START, "writer")
    graph.add_edge("writer", "critic")
    graph.add_edge("critic", END)
    talk = graph.compile(checkpointer=InMemorySaver())
    for said in ("Say hello.", "Again.", "And again."):
        state = talk.invoke({"messages": [HumanMessage(said)]}, {"configurable": {"thread_id": "1"}})
    assert [message.name for message in state["messages"][-3:]] == [None, "writer", "critic"]
    return state["messages"][-1].content


def agents_stream(url: str) -> object:
    agent = create_react_agent(chat(url), [], name="writer", checkpointer=InMemorySaver())
    settings = {"configurable": {"thread_id": "1"}}
    for said in ("Say hello.", "Again."):
        asked = {"messages": [HumanMessage(said)]}
        pieces = [piece.content for piece, _ in agent.stream(asked, settings, stream_mode="messages")]
    assert any(pieces)
    return "".join(pieces)


def named(url: str) -> object:
    messages = [
        SystemMessage("You are terse.", name="rules"),
        HumanMessage("Say hello.", name="ada"),
        AIMessage("Hello.", name="writer"),
        HumanMessage("Again."),
    ]
    return chat(url).invoke(messages).content


CASES: list[speak.Case] = [agents, agents_stream, named]

if __name__ == "__main__":
    speak.run("langgraph", CASES, {}, also=("langchain-openai",))
