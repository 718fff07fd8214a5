"""Responses in the background through OpenAI's SDK, on both databases."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
import sqlalchemy as sa

from billing import tables
from billing.clock import SECOND
from engine.text.tokenizer import Tokenizer
from gateway.config.server_secrets import read_server_secrets
from gateway.stored.background import (
    EVENTS_KEPT_S,
    BackgroundStore,
    EventGroup,
    EventWrite,
    ResponseEnd,
    delete_old_events,
)
from gateway.stored.conversation_items import TurnItems
from gateway.stored.quotas import ResponseQuotas
from gateway.stored.responses import ResponseStore
from gateway.stored.texts import TextKeys
from gateway.tables import response_events, responses, text_keys
from support.gateway.scripted_engine import ScriptedStack
from support.gateway.speaking import NOW, ONE, THOUGHT, WEATHER, Speaking
from support.gateway.stored import opt_in
from support.gateway.tool_model import make_tool_model, says_text
from support.stack import MODEL
from support.waiting import eventually

DAY_S = 24 * 3600
TOOLS: Any = [{"type": "function", **tool["function"]} for tool in (WEATHER, NOW)]
LEASE = "[lease]\nlength_s = 3\nrenew_s = 0.5\nexpire_s = 0.5\n"
MILD = "It is mild in Paris today."


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaking]:
    directory: Path = tmp_path_factory.mktemp("background")
    model = make_tool_model(directory / "model")
    url = f"sqlite:///{directory}/laneway.db"
    if request.param == "postgres":
        url = request.getfixturevalue("modules_postgres_url")
    stack = ScriptedStack(directory, url, model, toml=LEASE)
    try:
        stack.start()
        speaking = Speaking(stack, Tokenizer.load(model))
        with speaking.openai:
            yield speaking
        assert stack.open_holds() == 0
    finally:
        stack.stop()


@pytest.fixture
def speaking(shared: Speaking) -> Speaking:
    """acme and globex opted in, and nothing is stored."""
    for table in (response_events, responses, text_keys):
        shared.stack.write(lambda c, table=table: c.execute(sa.delete(table)))
    for slug in ("acme", "globex"):
        opt_in(shared.stack, slug, 30 * DAY_S)
    shared.stack.known()
    return shared


def api(speaking: Speaking) -> Any:
    """Of the SDK; untyped, as items of many types have the attributes that the tests read."""
    return speaking.openai.responses


def ask(speaking: Speaking, says: str = MILD, held_after: str | None = None, **fields: Any) -> Any:
    speaking.stack.says(says_text(speaking.tokenizer, says, held_after=held_after))
    return api(speaking).create(model=MODEL, input="Weather?", background=True, **fields)


def ended(speaking: Speaking, id_: str, *, at: str = "") -> Any:
    client = speaking.openai.with_options(base_url=f"{at}/v1") if at else speaking.openai
    eventually(lambda: client.responses.retrieve(id_).status not in ("queued", "in_progress"))
    return client.responses.retrieve(id_)


def usage_of(speaking: Speaking, id_: str) -> Any:
    """What was billed. The last events of a response can be read before it is settled."""
    request_id = "req_" + id_.removeprefix("resp_")
    eventually(lambda: speaking.stack.usage(request_id) is not None)
    return speaking.stack.usage(request_id)


def release(speaking: Speaking) -> None:
    speaking.stack.scripted.release_held()


def rest(speaking: Speaking, id_: str, after: int) -> list[Any]:
    return list(api(speaking).retrieve(id_, stream=True, starting_after=after))


def test_a_response_is_made_without_its_client(speaking: Speaking) -> None:
    said = ask(speaking, THOUGHT + ONE, held_after=THOUGHT + "I look", tools=TOOLS, metadata={"a": "b"})
    assert (said.status, said.background, said.store, said.output) == ("queued", True, True, [])
    eventually(lambda: len(api(speaking).retrieve(said.id).output) == 2)  # the message has begun
    part = api(speaking).retrieve(said.id)
    assert part.status == "in_progress"
    assert part.output[0].content[0].text == "Paris is in France."
    release(speaking)
    whole = ended(speaking, said.id)
    assert whole.status == "completed"
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call"]
    assert whole.usage.output_tokens == usage_of(speaking, said.id).completion_tokens
    assert api(speaking).cancel(said.id) == whole, "no effect on a response that has ended"
    speaking.says("Mild.")
    output: Any = {"type": "function_call_output", "call_id": whole.output[2].call_id, "output": "18 degrees"}
    following = api(speaking).create(model=MODEL, previous_response_id=said.id, input=[output], tools=TOOLS)
    assert following.output_text == "Mild."


def test_a_stream_is_continued_from_any_event(speaking: Speaking) -> None:
    with ask(speaking, THOUGHT + ONE, held_after=THOUGHT + "I look", tools=TOOLS, stream=True) as stream:
        begun = [next(stream) for _ in range(6)]
    id_ = begun[0].response.id
    assert [event.sequence_number for event in begun] == list(range(6))
    release(speaking)
    whole = ended(speaking, id_)
    assert whole.status == "completed", "the client of a stream may leave"
    every = rest(speaking, id_, 0)
    assert [event.sequence_number for event in every] == list(range(1, len(every) + 1))
    assert every[:5] == begun[1:]
    assert every[-1].type == "response.completed"
    assert every[-1].response == whole
    for after in (1, 4, len(every) - 1):
        assert rest(speaking, id_, after) == every[after:]
    assert rest(speaking, id_, len(every)) == []
    assert list(api(speaking).retrieve(id_, stream=True))[1:] == every
    chunks = [event.delta for event in every if event.type == "response.output_text.delta"]
    assert "".join(chunks).startswith("I look")


def test_a_conversation_gets_the_items_of_a_response_in_the_background(speaking: Speaking) -> None:
    conversations: Any = speaking.openai.conversations
    conversation = conversations.create()
    said = ask(speaking, held_after="It is mild", conversation=conversation.id)
    assert conversations.items.list(conversation.id).data == []
    release(speaking)
    whole = ended(speaking, said.id)
    assert whole.conversation.id == conversation.id
    items = conversations.items.list(conversation.id, order="asc").data
    assert [item.role for item in items] == ["user", "assistant"]
    assert items[1].content[0].text == MILD
    stopped = ask(speaking, held_after="It is mild", conversation=conversation.id)
    api(speaking).cancel(stopped.id)
    assert len(conversations.items.list(conversation.id).data) == 2, "a cancelled response adds nothing"
    conversations.delete(conversation.id)


def test_a_follower_gets_events_as_they_are_made(speaking: Speaking) -> None:
    said = ask(speaking, held_after="It is mild")
    stream = api(speaking).retrieve(said.id, stream=True)
    first = next(event for event in stream if event.type == "response.output_text.delta")
    assert first.sequence_number > 0
    release(speaking)
    assert list(stream)[-1].type == "response.completed"


def test_what_cannot_be_in_the_background_is_refused(speaking: Speaking) -> None:
    holds = speaking.stack.holds()
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(speaking, store=False)
    assert refusal.value.param == "background"
    with pytest.raises(openai.BadRequestError, match="Idempotency-Key"):
        ask(speaking, extra_headers={"Idempotency-Key": "a"})
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(speaking, extra_body={"input": "a " * 5000})
    assert refusal.value.code == "context_length_exceeded"
    opt_in(speaking.stack, "globex", None)
    speaking.stack.known()
    globex = speaking.openai.with_options(api_key=speaking.stack.keys["globex"])
    with pytest.raises(openai.BadRequestError, match="have its responses stored"):
        globex.responses.create(model=MODEL, input="a", background=True)
    assert speaking.stack.holds() == holds
    speaking.says("Mild.")
    plain = api(speaking).create(model=MODEL, input="a")
    with pytest.raises(openai.BadRequestError, match="not made with 'background'"):
        api(speaking).retrieve(plain.id, stream=True)
    with pytest.raises(openai.BadRequestError, match="stream=true"):
        api(speaking).retrieve(plain.id, extra_query={"starting_after": 1})
    with pytest.raises(openai.BadRequestError, match="background"):
        api(speaking).cancel(plain.id)


def test_a_running_response_is_not_continued(speaking: Speaking) -> None:
    said = ask(speaking, held_after="It is")
    with pytest.raises(openai.BadRequestError, match=r"whose status is (queued|in_progress)"):
        api(speaking).create(model=MODEL, input="a", previous_response_id=said.id)
    release(speaking)
    ended(speaking, said.id)


def test_a_cancelled_response_keeps_and_bills_its_text(speaking: Speaking) -> None:
    said = ask(speaking, held_after="It is mild")
    eventually(lambda: api(speaking).retrieve(said.id).output_text == "It is mild")
    cancelled = api(speaking).cancel(said.id)
    assert (cancelled.status, cancelled.output_text, cancelled.error) == ("cancelled", "It is mild", None)
    assert cancelled.output[0].status == "incomplete"
    assert api(speaking).retrieve(said.id) == cancelled
    assert api(speaking).cancel(said.id) == cancelled
    row = usage_of(speaking, said.id)
    assert row.ending == "cancelled"
    assert row.completion_tokens == len(speaking.tokenizer.encode("It is mild"))
    assert cancelled.usage is not None
    assert cancelled.usage.output_tokens == row.completion_tokens
    last = rest(speaking, said.id, 0)[-1]
    assert (last.type, last.response.status) == ("response.failed", "cancelled")
    with pytest.raises(openai.BadRequestError, match="whose status is cancelled"):
        api(speaking).create(model=MODEL, input="a", previous_response_id=said.id)


def test_a_queued_response_is_cancelled(speaking: Speaking) -> None:
    said = ask(speaking, held_after="")
    assert api(speaking).retrieve(said.id).status == "queued"
    cancelled = api(speaking).cancel(said.id)
    assert (cancelled.status, cancelled.output) == ("cancelled", [])
    eventually(lambda: speaking.stack.open_holds() == 0)
    assert speaking.stack.usage("req_" + said.id.removeprefix("resp_")) is None


def test_a_deleted_response_ends(speaking: Speaking) -> None:
    said = ask(speaking, MILD * 3, held_after="It is mild")
    eventually(lambda: api(speaking).retrieve(said.id).output_text == "It is mild")
    api(speaking).delete(said.id)
    with pytest.raises(openai.NotFoundError):
        api(speaking).retrieve(said.id, stream=True)
    release(speaking)
    eventually(lambda: speaking.stack.open_holds() == 0)
    assert speaking.stack.read(lambda c: list(c.execute(sa.select(response_events)))) == []


def test_another_tenant_follows_and_cancels_nothing(speaking: Speaking) -> None:
    said = ask(speaking, held_after="It is")
    globex = speaking.openai.with_options(api_key=speaking.stack.keys["globex"])
    for tried in (
        lambda: globex.responses.cancel(said.id),
        lambda: globex.responses.retrieve(said.id),
        lambda: globex.responses.retrieve(said.id, stream=True),
    ):
        with pytest.raises(openai.NotFoundError):
            tried()
    release(speaking)
    assert ended(speaking, said.id).status == "completed"


def test_events_are_deleted_after_their_time(speaking: Speaking) -> None:
    said = ask(speaking)
    whole = ended(speaking, said.id)
    stack = speaking.stack

    def size() -> int:
        return stack.read(lambda c: int(c.execute(sa.select(responses.c.bytes)).scalar_one()))

    before = size()
    assert stack.write(delete_old_events) == 0
    old = responses.c.events_until - round(EVENTS_KEPT_S + 1) * SECOND
    stack.write(lambda c: c.execute(sa.update(responses).values(events_until=old)))
    stored = stack.read(lambda c: c.execute(sa.select(sa.func.sum(sa.func.length(response_events.c.events)))).scalar())
    assert stack.write(delete_old_events) == 1
    assert size() == before - int(stored or 0)
    assert stack.write(delete_old_events) == 0
    assert api(speaking).retrieve(said.id) == whole
    with pytest.raises(openai.BadRequestError, match="events are deleted"):
        api(speaking).retrieve(said.id, stream=True)


def test_texts_and_events_are_encrypted(speaking: Speaking) -> None:
    said = ask(speaking)
    ended(speaking, said.id)
    [row] = speaking.stack.read(lambda c: list(c.execute(sa.select(responses))))
    groups = speaking.stack.read(lambda c: list(c.execute(sa.select(response_events))))
    for stored in (row.input, row.answer, *[group.events for group in groups]):
        assert b"mild" not in stored
        assert b"Weather" not in stored
        assert b"response" not in stored


async def begun(stack: ScriptedStack, store: BackgroundStore, slug: str, id_: str) -> EventWrite:
    """A response in the background without a generation. Returns the write of its first group."""
    keys, quotas = TextKeys(read_server_secrets(stack.config)), ResponseQuotas(100, 1 << 30)
    tenant_id = stack.tenants[slug]
    await ResponseStore(stack.database, gateway_id(stack), keys, quotas).begin_turn(tenant_id, id_, None, b"[]")
    assert await store.queue_response(tenant_id, id_, b"{}")
    group = EventGroup(0, 0, b'event: a\ndata: {"type": "a"}\n\n')
    return EventWrite(tenant_id, id_, group, None)


def gateway_id(stack: ScriptedStack) -> str:
    """Of a living gateway: the responses of others are ended."""
    return str(stack.read(lambda c: c.execute(sa.select(tables.leases.c.gateway_id)).scalars().first()))


def own_store(stack: ScriptedStack) -> BackgroundStore:
    return BackgroundStore(stack.database, gateway_id(stack), TextKeys(read_server_secrets(stack.config)), lambda _: {})


async def test_a_write_whose_commit_was_not_confirmed_is_repeated(speaking: Speaking) -> None:
    store = own_store(speaking.stack)
    write = await begun(speaking.stack, store, "acme", "resp_" + "1" * 32)
    conversation = speaking.openai.conversations.create()
    added = TurnItems(conversation.id, b'[{"role": "user", "content": "Hello"}]', b'{"output": []}')
    end = ResponseEnd("completed", b'{"output": []}', added)
    last = msgspec.structs.replace(write, group=EventGroup(1, 1, write.group.events), end=end)
    for each in (write, last):
        assert await store.write_events(each) == "written"
        assert await store.write_events(msgspec.structs.replace(each, repeated=True)) == "written"
    state = await store.read_response(write.tenant_id, write.response_id, -1)
    assert state is not None
    assert (state.status, state.events) == ("completed", [write.group.events] * 2)
    assert len(speaking.openai.conversations.items.list(conversation.id).data) == 1, "it is appended once"
    speaking.openai.conversations.delete(conversation.id)
    assert await store.write_events(msgspec.structs.replace(last, group=EventGroup(2, 2, b""))) == "gone"


async def test_a_tenants_unreadable_key_harms_no_other(speaking: Speaking) -> None:
    """Both groups are in one transaction."""
    stack = speaking.stack
    store = own_store(stack)
    writes = [await begun(stack, store, slug, f"resp_{slug[0]}" + "2" * 31) for slug in ("acme", "globex")]
    broken = sa.update(text_keys).where(text_keys.c.tenant_id == stack.tenants["acme"]).values(wrapped=b"\1" * 61)
    stack.write(lambda c: c.execute(broken))
    assert await asyncio.gather(*map(store.write_events, writes)) == ["gone", "written"]
    assert len(stack.read(lambda c: list(c.execute(sa.select(response_events))))) == 1


def test_a_lease_that_has_run_out_ends_no_response(speaking: Speaking) -> None:
    """After the database was unavailable, the leases of living gateways have run out. The Auditor decides who is dead,
    and deletes their leases."""
    stack = speaking.stack
    said = ask(speaking, held_after="It is mild")
    eventually(lambda: api(speaking).retrieve(said.id).output_text == "It is mild")
    store = own_store(stack)
    late = sa.insert(tables.leases).values(gateway_id="gw_late", acquired_at=0, renewed_at=0, expires_at=1)

    def ended_with(lease: bool) -> int:
        def run(connection: sa.Connection) -> int:
            with connection.begin_nested() as undone:
                connection.execute(sa.update(responses).where(responses.c.id == said.id).values(gateway_id="gw_late"))
                if lease:
                    connection.execute(late)
                ended = store._end_orphans(connection)
                undone.rollback()
            return ended

        return stack.write(run)

    assert ended_with(lease=True) == 0
    assert ended_with(lease=False) == 1
    release(speaking)
    assert ended(speaking, said.id).status == "completed"


def test_a_killed_gateway_bills_what_can_be_read(speaking: Speaking) -> None:
    """The response ends as failed with the events that were stored; their tokens are billed, and no others."""
    stack = speaking.stack
    said = ask(speaking, held_after="It is mild")
    eventually(lambda: api(speaking).retrieve(said.id).output_text == "It is mild")
    assert stack.gateway is not None
    stack.gateway.send_signal(signal.SIGKILL)
    stack.gateway.wait(30)
    stack.start_gateway()
    stack.wait_ready()
    assert api(speaking).retrieve(said.id).output_text == "It is mild", "at once, before the lease has run out"
    failed = ended(speaking, said.id)
    assert failed.status == "failed"
    assert failed.error is not None
    assert failed.error.code == "server_error"
    assert failed.output_text == "It is mild"
    eventually(lambda: stack.open_holds() == 0)
    row = usage_of(speaking, said.id)
    tokens = len(speaking.tokenizer.encode("It is mild"))
    assert (row.ending, row.completion_tokens, row.made_tokens) == ("gateway_dead", tokens, tokens)
    assert row.prompt_tokens > 0
    assert row.engine_epoch, "the checkpoint names the engine"
    assert failed.usage is not None
    assert (failed.usage.input_tokens, failed.usage.output_tokens) == (row.prompt_tokens, tokens)
    every = rest(speaking, said.id, 0)
    assert [event.sequence_number for event in every] == list(range(1, len(every) + 1))
    assert (every[-1].type, every[-1].response) == ("response.failed", failed)
    eventually(lambda: stack.read(lambda c: list(c.execute(sa.select(tables.checkpoints)))) == [])
    speaking.says("Mild.")
    assert api(speaking).create(model=MODEL, input="a").output_text == "Mild."


def test_a_stopping_gateway_ends_its_responses(speaking: Speaking) -> None:
    stack = speaking.stack
    said = ask(speaking, held_after="It is mild")
    eventually(lambda: api(speaking).retrieve(said.id).output_text == "It is mild")
    assert stack.gateway is not None
    stack.gateway.terminate()
    stack.gateway.wait(60)
    stack.start_gateway()
    stack.wait_ready()
    failed = api(speaking).retrieve(said.id)
    assert (failed.status, failed.output_text) == ("failed", "It is mild")
    row = usage_of(speaking, said.id)
    assert row.ending == "shutdown"
    assert failed.usage is not None
    assert row.completion_tokens == failed.usage.output_tokens


@pytest.mark.parametrize("shared", ["postgres"], indirect=True, scope="module")  # SQLite allows one gateway
def test_any_gateway_follows_and_cancels(speaking: Speaking) -> None:
    stack = speaking.stack
    if not stack.more_gateways:
        stack.start_more_gateways(1)
    other = speaking.openai.with_options(base_url=f"{stack.urls[-1]}/v1")
    said = ask(speaking, held_after="It is mild")
    stream = other.responses.retrieve(said.id, stream=True)
    assert next(event for event in stream if event.type == "response.output_text.delta")
    cancelled = other.responses.cancel(said.id)
    assert (cancelled.status, cancelled.output_text) == ("cancelled", "It is mild")
    assert list(stream)[-1].type == "response.failed"


def test_keep_alives_and_raw_events(speaking: Speaking) -> None:
    said = ask(speaking)
    ended(speaking, said.id)
    headers = {"Authorization": f"Bearer {speaking.stack.keys['acme']}"}
    answer = httpx.get(f"{speaking.stack.url}/v1/responses/{said.id}?stream=true", headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(part.split("data: ")[1]) for part in answer.text.split("\n\n")[:-1]]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["response"]["status"] == "in_progress"
