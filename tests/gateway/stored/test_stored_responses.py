"""Stored responses through OpenAI's SDK: a tenant that opted in, on both databases."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import sqlalchemy as sa

from billing import tables
from billing.clock import SECOND
from engine.text.tokenizer import Tokenizer
from gateway.config.server_secrets import ServerSecrets, read_server_secrets
from gateway.stored.responses import delete_unreadable
from gateway.stored.texts import TextKeys, delete_text_key, scrub
from gateway.tables import responses, text_keys
from support.gateway.scripted_engine import ScriptedStack
from support.gateway.speaking import NOW, ONE, THOUGHT, WEATHER, Speaking
from support.gateway.stored import opt_in
from support.gateway.tool_model import make_tool_model, says_text
from support.stack import MODEL
from support.waiting import eventually

DAY_S = 24 * 3600
TOOLS: Any = [{"type": "function", **tool["function"]} for tool in (WEATHER, NOW)]
QUOTA = 12


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaking]:
    directory: Path = tmp_path_factory.mktemp("stored")
    model = make_tool_model(directory / "model")
    url = f"sqlite:///{directory}/laneway.db"
    if request.param == "postgres":
        url = request.getfixturevalue("modules_postgres_url")
    stack = ScriptedStack(directory, url, model, toml=f"[responses]\ncount_max = {QUOTA}\n")
    try:
        stack.start()
        yield Speaking(stack, Tokenizer.load(model))
        assert stack.open_holds() == 0
    finally:
        stack.stop()


@pytest.fixture
def speaking(shared: Speaking) -> Speaking:
    """acme and globex opted in, and nothing is stored."""
    for table in (responses, text_keys):
        shared.stack.write(lambda c, table=table: c.execute(sa.delete(table)))
    for slug in ("acme", "globex"):
        opt_in(shared.stack, slug, 30 * DAY_S)
    shared.stack.known()
    return shared


def client(speaking: Speaking, slug: str) -> openai.OpenAI:
    return speaking.openai.with_options(api_key=speaking.stack.keys[slug])


def rows(speaking: Speaking) -> list[Any]:
    return speaking.stack.database.read_sync(lambda c: list(c.execute(sa.select(responses))))


def ask(speaking: Speaking, text: str, says: str = "Mild.", **fields: Any) -> Any:
    speaking.says(says)
    return speaking.openai.responses.create(model=MODEL, input=text, **fields)


def test_a_response_is_read_again_and_deleted(speaking: Speaking) -> None:
    said = ask(speaking, "What is it like in Paris?", says=THOUGHT + ONE, tools=TOOLS, metadata={"a": "b"})
    assert said.store is True
    assert speaking.openai.responses.retrieve(said.id) == said
    with speaking.openai.responses.stream(model=MODEL, input="And now?") as stream:
        streamed = stream.get_final_response()
    again: Any = speaking.openai.responses.retrieve(streamed.id)
    assert again.store is True
    assert again.output_text == streamed.output_text
    output: list[Any] = list(streamed.output)
    assert [item.id for item in again.output] == [item.id for item in output]
    items: list[Any] = speaking.openai.responses.input_items.list(said.id, order="asc").data
    assert [item.content[0].text for item in items] == ["What is it like in Paris?"]
    with pytest.raises(openai.BadRequestError, match="background"):
        speaking.openai.responses.cancel(said.id)
    speaking.openai.responses.delete(said.id)
    for once_more in (speaking.openai.responses.retrieve, speaking.openai.responses.delete):
        with pytest.raises(openai.NotFoundError):
            once_more(said.id)
    assert [row.id for row in rows(speaking)] == [streamed.id]


def test_a_turn_continues_the_one_before(speaking: Speaking) -> None:
    first = ask(speaking, "What is it like in Paris?", says=THOUGHT + ONE, tools=TOOLS, instructions="Be short.")
    [call] = [item for item in first.output if item.type == "function_call"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
    _restart_gateway(speaking.stack)  # whichever gateway serves the next turn
    speaking.says("It is mild.")
    fields: Any = {"model": MODEL, "tools": TOOLS, "previous_response_id": first.id}
    second = speaking.openai.responses.create(input=[output], **fields)  # type: ignore[list-item]
    prompt = speaking.prompt()
    assert prompt.index("What is it like in Paris?") < prompt.index("I look.") < prompt.index("18 degrees")
    assert "Be short." not in prompt, "instructions are of one turn"
    assert second.previous_response_id == first.id
    counted = speaking.openai.responses.input_tokens.count(input=[output], **fields)  # type: ignore[list-item]
    assert counted.input_tokens == second.usage.input_tokens  # type: ignore[union-attr]
    third = ask(speaking, "And tomorrow?", previous_response_id=second.id)
    other = ask(speaking, "And yesterday?", previous_response_id=second.id)  # a tree
    assert "And tomorrow?" not in speaking.prompt()
    items = speaking.openai.responses.input_items.list(other.id, order="asc", limit=100).data
    kinds = [item.type for item in items]
    assert kinds == ["message", "reasoning", "message", "function_call", "function_call_output", "message", "message"]
    page: Any = speaking.openai.responses.input_items.list(other.id, order="asc", limit=2)
    assert page.has_more
    rest = speaking.openai.responses.input_items.list(other.id, order="asc", limit=100, after=page.data[-1].id or "")
    assert [*page.data, *rest.data] == items
    speaking.says("Short.")
    speaking.openai.responses.compact(model=MODEL, previous_response_id=third.id, input="And then?")
    assert "18 degrees" in speaking.prompt()
    # Without its beginning a conversation cannot be continued.
    speaking.openai.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(speaking, "a", previous_response_id=third.id)
    assert (refusal.value.code, refusal.value.param) == ("previous_response_not_found", "previous_response_id")


def test_a_reference_stands_for_a_stored_item(speaking: Speaking) -> None:
    """The Vercel AI SDK sends the items of earlier answers like this."""
    first = ask(speaking, "What is it like in Paris?", says="It is mild.")
    user: Any = {"role": "user", "content": "What is it like in Paris?"}
    reference: Any = {"type": "item_reference", "id": first.output[0].id}
    again: Any = {"role": "user", "content": "And tomorrow?"}
    speaking.says("Mild.")
    second = speaking.openai.responses.create(model=MODEL, input=[user, reference, again])
    prompt = speaking.prompt()
    assert prompt.index("in Paris?") < prompt.index("It is mild.") < prompt.index("And tomorrow?")
    speaking.openai.responses.delete(first.id)
    ask(speaking, "And then?", previous_response_id=second.id)
    assert "It is mild." in speaking.prompt(), "the turn has the item itself"
    globex = client(speaking, "globex")
    unknown: Any = {"type": "item_reference", "id": "msg_" + "0" * 32 + "_0"}
    which: Any
    for tried, which in ((globex, {**reference, "id": second.output[0].id}), (globex, unknown), (globex, reference)):
        with pytest.raises(openai.BadRequestError, match="not found") as refusal:
            tried.responses.create(model=MODEL, input=[user, which, again])
        assert refusal.value.param == "input[1]"


def test_what_a_request_asks_not_to_store_is_not_stored(speaking: Speaking) -> None:
    first = ask(speaking, "One")
    for fields in ({"store": False}, {"store": False, "previous_response_id": first.id}):
        said = ask(speaking, "Two", **fields)
        assert said.store is False
    assert "One" in speaking.prompt()
    with pytest.raises(openai.NotFoundError):
        speaking.openai.responses.retrieve(said.id)
    opt_in(speaking.stack, "globex", None)
    speaking.stack.known()
    other: Any = client(speaking, "globex").responses.create(model=MODEL, input="a", store=True)
    assert other.store is False
    assert [row.id for row in rows(speaking)] == [first.id]


def test_refused_and_left_requests_leave_no_row(speaking: Speaking) -> None:
    first = ask(speaking, "One")
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(speaking, "a " * 5000)
    assert refusal.value.code == "context_length_exceeded"
    wrong: Any = [{"role": "user", "content": "a"}, {"type": "function_call_output", "call_id": "x", "output": ""}]
    with pytest.raises(openai.BadRequestError) as refusal:
        speaking.openai.responses.create(model=MODEL, input=wrong, previous_response_id=first.id)
    assert refusal.value.param == "input[1].call_id", "an index of the request's own items"
    assert "'input[1].call_id'" in str(refusal.value)
    speaking.stack.says(says_text(speaking.tokenizer, "It is mild.", held_after="It is"))
    with speaking.openai.responses.create(model=MODEL, input="a", stream=True) as stream:
        assert next(event for event in stream if event.type == "response.output_text.delta")
        assert len(rows(speaking)) == 2
    eventually(lambda: [row.id for row in rows(speaking)] == [first.id])


def test_a_count_names_the_requests_own_items(speaking: Speaking) -> None:
    first = ask(speaking, "One")
    wrong: Any = [{"role": "user", "content": "a"}, {"type": "function_call_output", "call_id": "x", "output": ""}]
    with pytest.raises(openai.BadRequestError) as refusal:
        speaking.openai.responses.input_tokens.count(model=MODEL, input=wrong, previous_response_id=first.id)
    assert refusal.value.param == "input[1].call_id"
    assert "'input[1].call_id'" in str(refusal.value)


def test_a_body_over_the_limit_of_stored_bodies_is_answered_and_not_stored(speaking: Speaking) -> None:
    first = ask(speaking, "One")
    large = {"client_metadata": {"a": "x" * speaking.stack.config.gateway.body_bytes_max}}
    assert ask(speaking, "Two", extra_body=large).store is False
    for fields in ({"previous_response_id": first.id}, {"background": True}):
        [field] = fields
        with pytest.raises(openai.APIStatusError, match=f"With '{field}'") as refusal:
            ask(speaking, "Three", extra_body=large, **fields)
        assert (refusal.value.status_code, refusal.value.code) == (413, "request_too_large")
    with pytest.raises(openai.APIStatusError, match="With 'previous_response_id'"):
        speaking.openai.responses.input_tokens.count(
            model=MODEL, input="a", previous_response_id=first.id, extra_body=large
        )
    assert [row.id for row in rows(speaking)] == [first.id]


def test_items_are_counted_before_the_event_loop_reads_them(speaking: Speaking) -> None:
    """Reading a million of them takes half a second."""
    url, headers = f"{speaking.stack.url}/v1/responses", {"Authorization": f"Bearer {speaking.stack.keys['acme']}"}

    def answered(items: list[Any]) -> Any:
        speaking.says("Mild.")
        return httpx.post(url, json={"model": MODEL, "input": items}, headers=headers, timeout=60).json()

    assert "over 4096 items" in answered([0] * 600_000)["error"]["message"]
    many = [{"role": "user", "content": "a"}, *[{"type": "reasoning", "summary": []}] * 4095]
    assert answered(many)["store"] is True


def test_another_tenant_reads_nothing(speaking: Speaking) -> None:
    """Over every path and form of an id, the answer is that for an id that never was."""
    said = ask(speaking, "What is it like in Paris?")
    unknown = "resp_" + "0" * 32
    secret, url = speaking.stack.keys["globex"], speaking.stack.url
    headers = {"Authorization": f"Bearer {secret}"}

    def tried(id_: str) -> list[tuple[int, str]]:
        found = []
        for prefix in ("", "/t/globex"):
            path = f"{url}{prefix}/v1/responses/{id_}"
            asked = [("GET", path), ("DELETE", path), ("POST", f"{path}/cancel"), ("GET", f"{path}/input_items")]
            found += [httpx.request(method, at, headers=headers) for method, at in asked]
            for at in ("", "/input_tokens", "/compact"):
                body = {"model": MODEL, "input": "a", "previous_response_id": id_}
                found.append(httpx.post(f"{url}{prefix}/v1/responses{at}", headers=headers, json=body))
        return [(answer.status_code, answer.text.replace(id_, "")) for answer in found]

    assert tried(said.id) == tried(unknown)
    assert {status for status, _ in tried(said.id)} == {400, 404}
    own = httpx.get(f"{url}/t/acme/v1/responses/{said.id}", headers=headers)
    assert own.status_code == 404, "acme's path is not globex's"
    assert speaking.openai.responses.retrieve(said.id) == said
    for form in (said.id.upper(), said.id.removeprefix("resp_"), said.id + "%00", said.id + "%20", said.id[:-1] + "%"):
        assert httpx.get(f"{url}/v1/responses/{form}", headers=headers).status_code in (400, 404)


def test_a_response_expires(speaking: Speaking) -> None:
    said = ask(speaking, "One")
    speaking.stack.write(
        lambda c: c.execute(sa.update(responses).values(created_at=responses.c.created_at - 31 * DAY_S * SECOND))
    )
    with pytest.raises(openai.NotFoundError):
        speaking.openai.responses.retrieve(said.id)
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(speaking, "Two", previous_response_id=said.id)
    assert refusal.value.code == "previous_response_not_found"
    opt_in(speaking.stack, "acme", 60 * DAY_S)
    assert speaking.openai.responses.retrieve(said.id) == said, "the tenant's setting decides at every read"
    opt_in(speaking.stack, "acme", 30 * DAY_S)
    assert speaking.stack.write(delete_unreadable) == 1
    assert rows(speaking) == []


def test_without_its_key_no_text_can_be_read(speaking: Speaking) -> None:
    said = ask(speaking, "What is it like in Paris?", says="It is mild in Paris.")
    [row] = rows(speaking)
    for stored in (row.input, row.answer):
        assert b"Paris" not in stored
    stack = speaking.stack
    if stack.database.is_sqlite:
        for file in stack.directory.glob("laneway.db*"):
            assert b"mild in Paris" not in file.read_bytes(), file
    opt_in(stack, "acme", None)
    stack.write(lambda c: delete_text_key(c, stack.tenants["acme"]))
    opt_in(stack, "acme", 30 * DAY_S)
    stack.known()
    with pytest.raises(openai.NotFoundError):
        speaking.openai.responses.retrieve(said.id)
    again = ask(speaking, "Two")  # with a new key
    assert speaking.openai.responses.retrieve(again.id) == again
    assert stack.write(delete_unreadable) == 1
    assert [row.id for row in rows(speaking)] == [again.id]
    # A text that was moved to another row is not read.
    stack.write(lambda c: c.execute(sa.update(responses).values(answer=row.answer)))
    with pytest.raises(openai.NotFoundError):
        speaking.openai.responses.retrieve(again.id)
    assert stack.log_lines("response.unreadable")


def test_a_deleted_key_is_nowhere_in_the_files(speaking: Speaking) -> None:
    """Not even encrypted with the server's secret."""
    stack = speaking.stack
    wrapped = _wrapped_key(speaking)
    assert _is_in_files(stack, wrapped)
    stack.write(lambda c: delete_text_key(c, stack.tenants["acme"]))
    eventually(lambda: stack.database.maintain_sync(scrub))
    assert not _is_in_files(stack, wrapped)
    assert stack.database.read_sync(lambda c: list(c.execute(sa.select(text_keys)))) == []


def test_a_deleted_key_waits_for_older_transactions(speaking: Speaking) -> None:
    """The database keeps the old version of the row for them: SQLite in its log, PostgreSQL through VACUUM FULL."""
    stack = speaking.stack
    for older in _older_transactions(stack):
        wrapped = _wrapped_key(speaking)
        with older:
            stack.write(lambda c: delete_text_key(c, stack.tenants["acme"]))
            assert not stack.database.maintain_sync(scrub)
            assert len(stack.database.read_sync(lambda c: list(c.execute(sa.select(text_keys))))) == 1
        eventually(lambda: stack.database.maintain_sync(scrub))
        assert not _is_in_files(stack, wrapped)


def _older_transactions(stack: ScriptedStack) -> list[contextlib.AbstractContextManager[None]]:
    """Transactions that begin with the block and see the row: of PostgreSQL, with a snapshot and without."""

    @contextlib.contextmanager
    def reading(url: str, level: str, *statements: str) -> Iterator[None]:
        engine = sa.create_engine(url, isolation_level=level)
        with engine.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
            yield
        engine.dispose()

    count = "SELECT count(*) FROM text_keys"
    if stack.database.is_sqlite:
        return [reading(stack.database_url, "AUTOCOMMIT", "BEGIN", count)]
    own_id = "SELECT pg_current_xact_id()"
    return [
        reading(stack.database_url, "REPEATABLE READ", count),
        reading(stack.database_url, "READ COMMITTED", own_id),
    ]


def _wrapped_key(speaking: Speaking) -> bytes:
    """The tenant's key as the database has it, in use."""
    ask(speaking, "What is it like in Paris?")
    [key] = speaking.stack.database.read_sync(lambda c: list(c.execute(sa.select(text_keys))))
    wrapped: bytes = key.wrapped
    return wrapped


def _is_in_files(stack: ScriptedStack, wrapped: bytes) -> bool:
    if stack.database.is_sqlite:
        files = list(stack.directory.glob("laneway.db*"))
    else:
        where = sa.text("SELECT current_setting('data_directory') || '/' || pg_relation_filepath('text_keys')")
        files = [Path(stack.database.maintain_sync(lambda c: str(c.execute(where).scalar_one())))]
        stack.database.maintain_sync(lambda c: c.exec_driver_sql("CHECKPOINT"))
    return any(wrapped in file.read_bytes() for file in files)


def test_a_quota_refuses_before_the_hold(speaking: Speaking) -> None:
    for number in range(QUOTA):
        last = ask(speaking, str(number))
    holds = speaking.stack.holds()
    with pytest.raises(openai.RateLimitError) as refusal:
        ask(speaking, "One more")
    assert refusal.value.code == "quota_exceeded"
    assert "'store': false" in str(refusal.value)
    assert speaking.stack.holds() == holds
    assert ask(speaking, "Not stored", store=False).status == "completed"
    speaking.openai.responses.delete(last.id)
    assert ask(speaking, "One more").store is True


def test_a_killed_gateway_leaves_no_response_in_progress(speaking: Speaking) -> None:
    said = ask(speaking, "One")
    stack = speaking.stack
    stack.write(lambda c: c.execute(sa.update(responses).values(status="in_progress", answer=None)))
    assert stack.write(delete_unreadable) == 0, "its gateway runs"
    with pytest.raises(openai.NotFoundError):
        speaking.openai.responses.retrieve(said.id)
    with pytest.raises(openai.BadRequestError, match="in_progress"):
        ask(speaking, "Two", previous_response_id=said.id)
    stack.write(lambda c: c.execute(sa.update(responses).values(gateway_id="gw_gone")))
    assert stack.write(delete_unreadable) == 1


def test_a_lost_secret_costs_the_texts_and_nothing_else(speaking: Speaking) -> None:
    """`laneway secret adopt` deletes the keys that no secret decrypts: the tenant gets a new key."""
    said, stack = ask(speaking, "One"), speaking.stack
    secrets = read_server_secrets(stack.config)
    assert stack.write(TextKeys(secrets).delete_unreadable_keys) == 0
    assert stack.write(TextKeys(ServerSecrets(bytes(32))).delete_unreadable_keys) == 1
    with pytest.raises(openai.NotFoundError):
        speaking.openai.responses.retrieve(said.id)
    again = ask(speaking, "Two")
    assert speaking.openai.responses.retrieve(again.id) == again


def test_a_turn_continues_reasoning_whose_secret_was_dropped(speaking: Speaking) -> None:
    """The answer has its reasoning encrypted for the client, and as text beside it."""
    first = ask(speaking, "Where?", says=THOUGHT + "France.", include=["reasoning.encrypted_content"])
    assert first.output[0].encrypted_content
    tenant_id = speaking.stack.tenants["acme"]
    keys = TextKeys(read_server_secrets(speaking.stack.config))
    foreign = first.output[0].encrypted_content[:-8] + "AAAAAAAA"  # as of a secret that is not known any more

    def change(connection: sa.Connection) -> None:
        key = keys.key_of(connection, tenant_id)
        row = connection.execute(sa.select(responses)).one()
        assert key is not None
        answer = key.open(row.answer, f"{row.id} answer").replace(first.output[0].encrypted_content.encode(), b"x")
        answer = answer.replace(b'"x"', f'"{foreign}"'.encode())
        connection.execute(sa.update(responses).values(answer=key.seal(answer, f"{row.id} answer")))

    speaking.stack.write(change)
    assert speaking.openai.responses.retrieve(first.id).output[0].encrypted_content == foreign  # type: ignore[union-attr]
    ask(speaking, "And where is that?", previous_response_id=first.id)
    assert "Paris is in France." in speaking.prompt()


def test_one_key_for_a_tenant(speaking: Speaking) -> None:
    for _ in range(2):
        ask(speaking, "One")
    keys = speaking.stack.database.read_sync(lambda c: list(c.execute(sa.select(text_keys))))
    assert [key.tenant_id for key in keys] == [speaking.stack.tenants["acme"]]
    assert {row.text_key_id for row in rows(speaking)} == {keys[0].id}
    assert tables.tenants.c.store_responses_s.nullable


def _restart_gateway(stack: ScriptedStack) -> None:
    assert stack.gateway is not None
    stack.gateway.terminate()
    stack.gateway.wait(30)
    stack.start_gateway()
    stack.wait_ready()
