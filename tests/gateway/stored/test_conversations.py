"""OpenAI's Conversations API through its SDK: a tenant that opted in, on both databases."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import sqlalchemy as sa
from openai.types.conversations import Conversation, ConversationItemList

from billing.clock import SECOND
from billing.database import Database
from engine.text.tokenizer import Tokenizer
from gateway.api.responses_items import KNOWN_ITEMS
from gateway.config.server_secrets import read_server_secrets
from gateway.errors import InvalidRequest
from gateway.stored.conversation_items import KINDS
from gateway.stored.conversations import PAGE_BYTES_MAX, ConversationStore, delete_unreadable_conversations
from gateway.stored.quotas import CONVERSATION_BYTES_MAX, CONVERSATION_ITEMS_MAX, ResponseQuotas
from gateway.stored.texts import TextKeys, delete_text_key
from gateway.tables import conversation_items, conversations, responses, text_keys
from support.gateway.scripted_engine import ScriptedStack
from support.gateway.speaking import ONE, THOUGHT, WEATHER, Speaking
from support.gateway.stored import opt_in
from support.gateway.tool_model import make_tool_model, says_text
from support.stack import MODEL
from support.waiting import PATIENCE_S, eventually

DAY_S = 24 * 3600
NEVER_S = 600.0
COUNT_QUOTA, BYTES_QUOTA = 12, 100_000
TOOLS: Any = [{"type": "function", **WEATHER["function"]}]
HELLO: Any = {"role": "user", "content": "Hello."}


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaking]:
    directory: Path = tmp_path_factory.mktemp("conversations")
    model = make_tool_model(directory / "model")
    url = f"sqlite:///{directory}/laneway.db"
    if request.param == "postgres":
        url = request.getfixturevalue("modules_postgres_url")
    toml = f"[responses]\ncount_max = {COUNT_QUOTA}\nbytes_max = {BYTES_QUOTA}\n"
    stack = ScriptedStack(directory, url, model, toml=toml)
    try:
        stack.start()
        speaking = Speaking(stack, Tokenizer.load(model))
        with speaking.openai, speaking.anthropic:
            yield speaking
        assert stack.open_holds() == 0
    finally:
        stack.stop()


@pytest.fixture
def speaking(shared: Speaking) -> Speaking:
    """acme and globex opted in, and nothing is stored."""
    for table in (responses, conversation_items, conversations, text_keys):
        shared.stack.write(lambda c, table=table: c.execute(sa.delete(table)))
    for slug in ("acme", "globex"):
        opt_in(shared.stack, slug, 30 * DAY_S)
    shared.stack.known()
    return shared


def globex(speaking: Speaking) -> openai.OpenAI:
    return speaking.openai.with_options(api_key=speaking.stack.keys["globex"])


def rows(speaking: Speaking, table: sa.Table = conversations) -> list[Any]:
    return speaking.stack.database.read_sync(lambda c: list(c.execute(sa.select(table))))


def ask(speaking: Speaking, text: Any, says: str = "Mild.", **fields: Any) -> Any:
    speaking.says(says)
    return speaking.openai.responses.create(model=MODEL, input=text, **fields)


def items_of(speaking: Speaking, conversation: Any, **fields: Any) -> list[Any]:
    query: Any = {"order": "asc", "limit": 100} | fields
    return list(speaking.openai.conversations.items.list(conversation.id, **query))


def texts_of(speaking: Speaking, conversation: Any) -> list[str]:
    return [item.content[0].text for item in items_of(speaking, conversation) if item.type == "message"]


def store_of(stack: ScriptedStack, database: Database) -> ConversationStore:
    """That of another gateway on the same database."""
    return ConversationStore(database, TextKeys(read_server_secrets(stack.config)), ResponseQuotas(10**6, 10**9))


def test_a_conversation_is_made_read_changed_and_deleted(speaking: Speaking) -> None:
    api = speaking.openai.conversations
    made = api.create(items=[HELLO], metadata={"topic": "weather"})
    Conversation.model_validate(made.model_dump())
    assert (made.object, made.metadata, made.id[:5], len(made.id)) == (
        "conversation",
        {"topic": "weather"},
        "conv_",
        37,
    )
    assert isinstance(made.created_at, int)
    assert api.retrieve(made.id) == made
    changed = api.update(made.id, metadata={"topic": "Paris"})
    assert (changed.metadata, changed.created_at) == ({"topic": "Paris"}, made.created_at)
    assert api.retrieve(made.id) == changed
    assert api.update(made.id, metadata=None).metadata == {}
    assert api.create().metadata == {}
    deleted = api.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "conversation.deleted", True)
    for once_more in (api.retrieve, api.delete, api.items.list):
        with pytest.raises(openai.NotFoundError, match=f"Conversation with id '{made.id}' not found"):
            once_more(made.id)
    assert rows(speaking, conversation_items) == []
    assert speaking.stack.open_holds() == 0


def test_items_are_added_listed_and_deleted(speaking: Speaking) -> None:
    api = speaking.openai.conversations
    made = api.create(items=[HELLO])
    given: Any = [
        {"role": "assistant", "content": "Hi."},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Paris?"}]},
        {"type": "function_call", "id": "fc_mine", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "18 degrees"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "note", "input": "a"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "b"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And now?"}], "status": None},
    ]
    raw = api.items.with_raw_response.create(made.id, items=given)
    ConversationItemList.model_validate_json(raw.content)
    added: Any = raw.parse()
    assert [item.type for item in added.data] == [item.get("type", "message") for item in given]
    prefixes = ("msg_", "rs_", "fc_mine", "fco_", "ctc_", "ctco_", "msg_")
    assert all(item.id.startswith(prefix) for item, prefix in zip(added.data, prefixes, strict=True))
    statuses = [getattr(item, "status", None) for item in added.data]
    assert statuses == ["completed", None, "completed", "completed", None, None, "completed"]
    everything = items_of(speaking, made)
    assert everything[1:] == added.data
    assert items_of(speaking, made, order="desc") == everything[::-1]
    assert items_of(speaking, made, limit=3) == everything, "over several pages"
    page: Any = api.items.list(made.id, limit=2)  # desc is the default
    assert (page.data, page.has_more, page.last_id) == (everything[:-3:-1], True, everything[-2].id)
    rest: Any = api.items.list(made.id, after=everything[-2].id, limit=100, order="asc")
    assert (rest.data, rest.has_more) == (everything[-1:], False)
    assert api.items.retrieve("fc_mine", conversation_id=made.id) == everything[3]
    # An id that the conversation has already, or that no path can name, is replaced.
    for id_ in ("fc_mine", "a b", ""):
        [again] = api.items.create(made.id, items=[{**given[2], "id": id_}]).data
        assert again.id not in ("fc_mine", id_)
    left = api.items.delete("fc_mine", conversation_id=made.id)
    assert (left.id, left.object) == (made.id, "conversation")
    for once_more in (api.items.retrieve, api.items.delete):
        with pytest.raises(openai.NotFoundError, match="Item with id 'fc_mine' not found"):
            once_more("fc_mine", conversation_id=made.id)
    with pytest.raises(openai.BadRequestError) as refusal:
        api.items.list(made.id, after="fc_mine")
    assert refusal.value.param == "after"
    [row] = rows(speaking)
    of_items = rows(speaking, conversation_items)
    assert row.item_count == len(of_items) == len(everything) + 2
    assert row.bytes == len(row.metadata) + sum(len(item.item) for item in of_items)


def test_a_response_is_added_to_its_conversation(speaking: Speaking) -> None:
    made = speaking.openai.conversations.create(items=[{"role": "developer", "content": "Be short."}])
    first = ask(speaking, "What is it like in Paris?", says=THOUGHT + ONE, tools=TOOLS, conversation=made.id)
    assert first.conversation.id == made.id
    assert first.store is True
    assert speaking.openai.responses.retrieve(first.id) == first
    assert speaking.prompt().index("Be short.") < speaking.prompt().index("in Paris?")
    items = items_of(speaking, made)
    assert [item.type for item in items] == ["message", "message", "reasoning", "message", "function_call"]
    assert [item.id for item in items[2:]] == [item.id for item in first.output]
    output: Any = {"type": "function_call_output", "call_id": items[-1].call_id, "output": "18 degrees"}
    fields: Any = {"model": MODEL, "tools": TOOLS, "conversation": {"id": made.id}, "input": [output]}
    speaking.says("It is mild.")
    counted = speaking.openai.responses.input_tokens.count(**fields)
    with speaking.openai.responses.stream(**fields) as stream:
        second = stream.get_final_response()
    assert second.usage is not None
    assert counted.input_tokens == second.usage.input_tokens
    prompt = speaking.prompt()
    assert prompt.index("Be short.") < prompt.index("in Paris?") < prompt.index("I look.") < prompt.index("18 degrees")
    ConversationItemList.model_validate(
        httpx.get(
            f"{speaking.stack.url}/v1/conversations/{made.id}/items", headers=speaking.stack.headers("acme")
        ).json()
    )
    assert texts_of(speaking, made)[-1] == "It is mild."
    # What a client takes out is in no later prompt, and what it adds is.
    speaking.openai.conversations.items.delete(items[0].id, conversation_id=made.id)
    speaking.openai.conversations.items.create(made.id, items=[{"role": "user", "content": "In Rome?"}])
    third = ask(speaking, [], conversation=made.id)
    assert "Be short." not in speaking.prompt()
    assert "In Rome?" in speaking.prompt()
    assert ask(speaking, "And?", store=True).conversation is None
    with pytest.raises(openai.BadRequestError, match="'conversation' instead") as refusal:
        ask(speaking, "And?", previous_response_id=third.id)
    assert refusal.value.param == "previous_response_id"
    speaking.openai.conversations.delete(made.id)
    assert speaking.openai.responses.retrieve(third.id) == third


def test_a_cut_response_is_added_and_a_left_one_is_not(speaking: Speaking) -> None:
    made = speaking.openai.conversations.create()
    script = says_text(speaking.tokenizer, "It is mild.", held_after="It is")
    # Not HELD: a later test's `release_held` would send these frames.
    speaking.stack.says(lambda submit: [(min(delay_s, NEVER_S), frame) for delay_s, frame in script(submit)])
    fields: Any = {"model": MODEL, "input": "Left", "conversation": made.id}
    with speaking.openai.responses.create(**fields, stream=True) as stream:
        assert next(event for event in stream if event.type == "response.output_text.delta")
    eventually(lambda: not rows(speaking, responses))
    speaking.says("It is mild.", reason="error")
    with pytest.raises(openai.APIError):
        speaking.openai.responses.create(**fields)
    assert items_of(speaking, made) == []
    cut = ask(speaking, "Cut", says="It is mild.", conversation=made.id, max_output_tokens=2)
    assert cut.status == "incomplete"
    assert texts_of(speaking, made) == ["Cut", cut.output_text]
    key = {"Idempotency-Key": f"conversation-{made.id}"}
    for _ in range(2):
        ask(speaking, "Once", conversation=made.id, extra_headers=key)
    assert texts_of(speaking, made)[2:] == ["Once", "Mild."], "a replay adds nothing"


def test_refusals_name_the_field(speaking: Speaking) -> None:
    made = speaking.openai.conversations.create(items=[HELLO])
    first = ask(speaking, "One")
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"conversation": made.id, "previous_response_id": first.id}, "conversation", "exclude each other"),
        ({"conversation": made.id, "store": False}, "store", "is stored"),
        ({"conversation": {}}, "conversation.id", "required"),
        ({"conversation": 1}, "conversation", "wrong"),
    ]
    for fields, param, words in cases:
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            body = {"model": MODEL, "input": "a"} | fields
            answer = httpx.post(speaking.stack.url + path, headers=speaking.stack.headers("acme"), json=body)
            assert answer.status_code == 400, fields
            assert answer.json()["error"]["param"] == param
            assert words in answer.json()["error"]["message"]
    for wrong in ("conv_1", "conv_" + "0" * 32, "", "conv_\0"):
        with pytest.raises(openai.NotFoundError, match="not found") as missing:
            ask(speaking, "a", conversation=wrong)
        assert missing.value.param == "conversation"
    # Indices are of the request's own items, or of those of the conversation.
    stray: Any = {"type": "function_call_output", "call_id": "x", "output": ""}
    for create in (speaking.openai.responses.create, speaking.openai.responses.input_tokens.count):
        with pytest.raises(openai.BadRequestError) as refusal:
            create(model=MODEL, input=[HELLO, stray], conversation=made.id)
        assert refusal.value.param == "input[1].call_id"
    speaking.openai.conversations.items.create(made.id, items=[stray])
    with pytest.raises(openai.BadRequestError, match=r"'conversation\.items\[1\]\.call_id' is wrong"):
        ask(speaking, "a", conversation=made.id)
    assert len(items_of(speaking, made)) == 2


def test_refusals_of_conversations_name_the_field(speaking: Speaking) -> None:
    api = speaking.openai.conversations
    made = api.create()
    image: Any = {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}
    wrong_items: list[tuple[Any, str]] = [
        ([HELLO] * 21, "items"),
        ([HELLO, image], "items"),
        ([{"type": "item_reference", "id": "msg_1"}], "items[0]"),
        ("a", "items"),
    ]
    for items, param in wrong_items:
        with pytest.raises(openai.BadRequestError) as refusal:
            api.create(items=items, extra_body={"items": items})
        assert str(refusal.value.param).startswith(param)
        with pytest.raises(openai.BadRequestError) as refusal:
            api.items.create(made.id, items=items, extra_body={"items": items})
        assert str(refusal.value.param).startswith(param)
    with pytest.raises(openai.BadRequestError) as refusal:
        api.items.create(made.id, items=[])
    assert refusal.value.param == "items"
    for metadata in ({str(n): "a" for n in range(17)}, {"a" * 65: "b"}, {"a": "b" * 513}):
        for change in (api.create, lambda **fields: api.update(made.id, **fields)):
            with pytest.raises(openai.BadRequestError) as refusal:
                change(metadata=metadata)
            assert str(refusal.value.param).startswith("metadata")
    for limit in (0, 101):
        with pytest.raises(openai.BadRequestError):
            api.items.list(made.id, limit=limit)
    # An item that no prompt can have is left out, and named.
    search: Any = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    raw = api.items.with_raw_response.create(made.id, items=[search, HELLO])
    assert raw.headers["laneway-ignored"] == "items[0]"
    added: Any = raw.parse()
    assert [item.type for item in added.data] == ["message"]
    large: Any = {"role": "user", "content": "a" * 50_000}  # more than the event loop parses
    stored: Any = api.items.create(made.id, items=[large]).data[0]
    assert len(stored.content[0].text) == 50_000
    assert set(KINDS) == KNOWN_ITEMS


def test_hints_are_not_stored(speaking: Speaking) -> None:
    """Their values may be anything, also what no encoder takes."""
    made = speaking.openai.conversations.create()
    part = {"type": "output_text", "text": "Hi.", "annotations": [2**70], "logprobs": [2**70], "parsed": 2**70}
    call = {"type": "function_call", "call_id": "c1", "name": "a", "arguments": "{}", "caller": {"a": 2**70}}
    given: list[Any] = [
        {"role": "assistant", "content": [part], "phase": "final_answer"},
        {**call, "parsed_arguments": {"a": 2**70}},
        {"type": "function_call_output", "call_id": "c1", "output": "18 \0 degrees", "caller": 2**70},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So."}], "status": "completed"},
    ]
    speaking.openai.conversations.items.create(made.id, items=given)
    response = ask(speaking, [*given, HELLO], conversation=made.id)
    assert (response.status, response.store) == ("completed", True)
    odd = '{"type": "function_call_output", "call_id": "c1", "output": "", "caller": 1e999}'
    body = f'{{"model": "{MODEL}", "conversation": "{made.id}", "input": [{odd}]}}'
    answer = httpx.post(f"{speaking.stack.url}/v1/responses", headers=speaking.stack.headers("acme"), content=body)
    assert answer.json()["store"] is True
    items = [item.model_dump(exclude_none=True) for item in items_of(speaking, made)]
    assert items.pop()["type"] == "message"
    assert items.pop()["output"] == ""
    assert len(items) == 2 * len(given) + 2
    for first, second in zip(items[: len(given)], items[len(given) :], strict=False):
        assert first | {"id": ""} == second | {"id": ""}
    assert items[0]["content"] == [{"type": "output_text", "text": "Hi.", "annotations": []}]
    assert items[0]["phase"] == "final_answer"
    assert "caller" not in items[1]
    assert items[2]["output"] == "18 \0 degrees"


def test_another_tenant_reads_nothing(speaking: Speaking) -> None:
    """Over every path and form of an id, the answer is that for an id that never was."""
    made = speaking.openai.conversations.create(items=[HELLO], metadata={"a": "b"})
    [item] = items_of(speaking, made)
    url, headers = speaking.stack.url, {"Authorization": f"Bearer {speaking.stack.keys['globex']}"}

    def tried(id_: str, item_id: str) -> list[tuple[int, str]]:
        found = []
        for prefix in ("", "/t/globex"):
            path = f"{url}{prefix}/v1/conversations/{id_}"
            one = f"{path}/items/{item_id}"
            for method, at in (
                ("GET", path),
                ("DELETE", path),
                ("GET", f"{path}/items"),
                ("GET", one),
                ("DELETE", one),
            ):
                found.append(httpx.request(method, at, headers=headers))
            found.append(httpx.get(f"{path}/items", headers=headers, params={"after": item_id}))
            found.append(httpx.post(path, headers=headers, json={"metadata": {}}))
            found.append(httpx.post(f"{path}/items", headers=headers, json={"items": [HELLO]}))
            for at in ("", "/input_tokens"):
                body = {"model": MODEL, "input": "a", "conversation": id_}
                found.append(httpx.post(f"{url}{prefix}/v1/responses{at}", headers=headers, json=body))
        return [(answer.status_code, answer.text.replace(id_, "")) for answer in found]

    unknown = "conv_" + "0" * 32
    assert tried(made.id, item.id) == tried(unknown, "msg_" + "0" * 32)
    assert {status for status, _ in tried(made.id, item.id)} == {404}
    # An item is looked up in its own conversation alone.
    own = globex(speaking).conversations.create()
    with pytest.raises(openai.NotFoundError):
        globex(speaking).conversations.items.retrieve(item.id, conversation_id=own.id)
    assert httpx.get(f"{url}/t/acme/v1/conversations/{made.id}", headers=headers).status_code == 404
    for form in (made.id.upper(), made.id.removeprefix("conv_"), made.id + "%00", made.id + "%20", made.id[:-1] + "%"):
        assert httpx.get(f"{url}/v1/conversations/{form}", headers=headers).status_code in (400, 404)
    assert speaking.openai.conversations.retrieve(made.id) == made
    assert items_of(speaking, made) == [item]


def test_a_conversation_expires(speaking: Speaking) -> None:
    api = speaking.openai.conversations
    made = api.create(items=[HELLO])
    kept = api.create(items=[HELLO])
    old = sa.update(conversations).values(created_at=conversations.c.created_at - 31 * DAY_S * SECOND)
    speaking.stack.write(lambda c: c.execute(old.where(conversations.c.id == made.id)))
    for tried in (api.retrieve, api.items.list, api.delete):
        with pytest.raises(openai.NotFoundError, match=f"Conversation with id '{made.id}' not found"):
            tried(made.id)
    with pytest.raises(openai.NotFoundError):
        ask(speaking, "a", conversation=made.id)
    opt_in(speaking.stack, "acme", 60 * DAY_S)
    assert len(items_of(speaking, made)) == 1, "the tenant's setting decides at every read"
    opt_in(speaking.stack, "acme", 30 * DAY_S)
    assert speaking.stack.write(delete_unreadable_conversations) == 1
    assert speaking.stack.write(delete_unreadable_conversations) == 0
    assert [row.id for row in rows(speaking)] == [kept.id]
    assert [row.conversation_id for row in rows(speaking, conversation_items)] == [kept.id]


def test_opting_out_makes_everything_unreadable(speaking: Speaking) -> None:
    stack, api = speaking.stack, speaking.openai.conversations
    made = api.create(items=[{"role": "user", "content": "Paris"}], metadata={"city": "Paris"})
    ask(speaking, "Paris again", conversation=made.id)
    for text in (*(row.metadata for row in rows(speaking)), *(row.item for row in rows(speaking, conversation_items))):
        assert b"Paris" not in text
    opt_in(stack, "acme", None)
    stack.write(lambda c: delete_text_key(c, stack.tenants["acme"]))
    stack.known()
    with pytest.raises(openai.BadRequestError, match="not stored for this tenant"):
        api.create()
    with pytest.raises(openai.BadRequestError, match="not stored for this tenant") as refusal:
        ask(speaking, "a", conversation=made.id)
    assert refusal.value.param == "conversation"
    with pytest.raises(openai.NotFoundError):
        api.items.create(made.id, items=[HELLO])
    opt_in(stack, "acme", 30 * DAY_S)
    stack.known()
    again = api.create(items=[HELLO])  # with a new key
    for tried in (api.retrieve, api.items.list, api.delete):
        with pytest.raises(openai.NotFoundError):
            tried(made.id)
    assert stack.write(delete_unreadable_conversations) == 1
    assert [row.id for row in rows(speaking)] == [again.id]
    assert len(rows(speaking, conversation_items)) == 1
    # A text that was moved to another row is not read.
    other = api.create(items=[HELLO], metadata={"city": "Paris"})
    moved = {row.id: row for row in rows(speaking)}[other.id]
    [theirs] = [row for row in rows(speaking, conversation_items) if row.conversation_id == other.id]
    update = sa.update(conversations).where(conversations.c.id == again.id).values(metadata=moved.metadata)
    stack.write(lambda c: c.execute(update))
    of_again = sa.update(conversation_items).where(conversation_items.c.conversation_id == again.id)
    stack.write(lambda c: c.execute(of_again.values(item=theirs.item, id=theirs.id)))
    for tried in (api.retrieve, api.items.list):
        with pytest.raises(openai.NotFoundError):
            tried(again.id)
    assert stack.log_lines("conversation.unreadable")


def test_quotas_are_of_responses_and_conversations_together(speaking: Speaking) -> None:
    api = speaking.openai.conversations
    made = [api.create() for _ in range(COUNT_QUOTA - 1)]
    ask(speaking, "One", conversation=made[0].id)
    for refused in (api.create, lambda: ask(speaking, "Two", conversation=made[0].id)):
        with pytest.raises(openai.RateLimitError, match=f"limit is {COUNT_QUOTA}") as refusal:
            refused()
        assert refusal.value.code == "quota_exceeded"
    assert len(items_of(speaking, made[0])) == 2
    for conversation in made[1:]:
        api.delete(conversation.id)
    large: Any = [{"role": "user", "content": "a" * (BYTES_QUOTA // 3)}]
    for _ in range(2):
        api.items.create(made[0].id, items=large)
    for refused in (
        lambda: api.items.create(made[0].id, items=large),
        lambda: api.create(items=large),
        lambda: ask(speaking, large),
    ):
        with pytest.raises(openai.RateLimitError, match=f"exceed {BYTES_QUOTA} bytes"):
            refused()
    last = items_of(speaking, made[0])[-1]
    api.items.delete(last.id, conversation_id=made[0].id)
    assert api.items.create(made[0].id, items=large).data


def test_a_conversation_that_is_too_long_is_in_no_prompt(speaking: Speaking) -> None:
    api = speaking.openai.conversations
    for column, value in (("item_count", CONVERSATION_ITEMS_MAX + 1), ("bytes", CONVERSATION_BYTES_MAX + 1)):
        made = api.create(items=[HELLO])
        changed = sa.update(conversations).where(conversations.c.id == made.id)
        speaking.stack.write(lambda c, changed=changed, new={column: value}: c.execute(changed.values(new)))
        with pytest.raises(openai.APIStatusError) as refusal:
            speaking.openai.responses.input_tokens.count(model=MODEL, input="a", conversation=made.id)
        assert (refusal.value.code, refusal.value.param) == ("context_length_exceeded", "conversation")
        assert str(CONVERSATION_ITEMS_MAX) in str(refusal.value)
        api.delete(made.id)


def test_appends_at_once_get_positions_of_their_own(speaking: Speaking) -> None:
    """Of two gateways, and of responses that end at the same moment."""
    stack = speaking.stack
    made = speaking.openai.conversations.create()
    ready = threading.Barrier(4)

    def gateway(number: int) -> None:
        database = Database(stack.database.url.render_as_string(hide_password=False))
        try:
            store = store_of(stack, database)
            ready.wait(PATIENCE_S)
            for turn in range(10):
                items = [{"role": "user", "content": f"{number} {turn} {part}"} for part in range(2)]
                asyncio.run(store.add_items(stack.tenants["acme"], made.id, items))
        finally:
            database.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(gateway, range(4)))
    stored = [text.split() for text in texts_of(speaking, made)]
    assert len(stored) == 80
    for number in range(4):  # each one's in its order, and those of one append side by side
        assert [turn for one, turn, part in stored if one == str(number) and part == "0"] == [str(n) for n in range(10)]
    assert all(first[:2] == second[:2] for first, second in zip(stored[::2], stored[1::2], strict=True))
    [row] = rows(speaking)
    assert (row.item_count, row.next_position) == (80, 80)
    speaking.says("Mild.")
    fields: Any = {"model": MODEL, "conversation": made.id}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: speaking.openai.responses.create(input=f"r{number}", **fields), range(4)))
    last = texts_of(speaking, made)[80:]
    assert sorted(last[::2]) == ["r0", "r1", "r2", "r3"]
    assert last[1::2] == ["Mild."] * 4


def test_a_page_ends_before_it_is_too_large(speaking: Speaking) -> None:
    stack = speaking.stack
    made = speaking.openai.conversations.create()
    database = Database(stack.database.url.render_as_string(hide_password=False))
    large = [{"role": "user", "content": str(number) * (PAGE_BYTES_MAX * 2 // 5)} for number in range(4)]
    store = store_of(stack, database)
    try:
        asyncio.run(store.add_items(stack.tenants["acme"], made.id, large))
        with pytest.raises(InvalidRequest, match=f"over {CONVERSATION_ITEMS_MAX} items or {CONVERSATION_BYTES_MAX}"):
            asyncio.run(store.add_items(stack.tenants["acme"], made.id, large * 4))
    finally:
        database.close()
    page: Any = speaking.openai.conversations.items.list(made.id, order="asc", limit=100)
    assert (len(page.data), page.has_more) == (2, True)
    assert [text[0] for text in texts_of(speaking, made)] == ["0", "1", "2", "3"]


def test_a_deletion_during_a_response(speaking: Speaking) -> None:
    """The response is stored, and nothing remains of the conversation."""
    made = speaking.openai.conversations.create(items=[HELLO])
    speaking.stack.says(says_text(speaking.tokenizer, "It is mild.", held_after="It is"))
    with speaking.openai.responses.create(model=MODEL, input="a", conversation=made.id, stream=True) as stream:
        assert next(event for event in stream if event.type == "response.output_text.delta")
        speaking.openai.conversations.delete(made.id)
        speaking.stack.scripted.release_held()
        last: Any = list(stream)[-1]
    assert last.type == "response.completed"
    assert speaking.openai.responses.retrieve(last.response.id).output_text == "It is mild."
    assert rows(speaking, conversation_items) == []
    assert speaking.stack.log_lines("conversation.not_appended")
