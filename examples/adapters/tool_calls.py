"""The training data of the adapter tool-agent: conversations with tools, as the gateway writes them for a model whose
chat template knows no tools. Seeded; no held-out value or number is in the training data."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from data import HERE, read_lines

from gateway.tools.definitions import ToolSpec
from gateway.tools.formats import HERMES
from gateway.tools.model_dialect import ModelDialect
from gateway.tools.rendering import call_in_history, result_in_history, template_messages
from gateway.tools.scanning import AnswerMarkers

DIALECT = ModelDialect(AnswerMarkers((), {}), format=HERMES)
Message = dict[str, Any]

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are the assistant of a small company. Be brief.",
    "You are terse.",
)
NO_TOOL = "I have no tool for that."
# Parts of the conversations.
PLAIN, UNOFFERED, TWICE, WITH_SYSTEM = 0.15, 0.03, 0.15, 0.25
WITHOUT_TOOLS = 0.05  # of the offers
HELD_OUT_REST = 4  # integers n with n % 9 == 4 are held out

# Lists by name, of the training and held out.
VALUES: dict[str, Any] = json.loads((HERE / "tool_values.json").read_text(encoding="utf-8"))
CURRENCY_WORDS: dict[str, str] = VALUES["currency_words"]
SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "clear", "grey")
STATUSES = ("shipped", "delivered", "open", "cancelled", "packed", "delayed")


class Values:
    """Draws values for questions: either values of the training, or held-out values, which the training never has."""

    def __init__(self, draw: random.Random, *, held_out: bool) -> None:
        self.draw = draw
        self.held_out = held_out

    def one_of(self, name: str) -> str:
        return self.draw.choice(VALUES["held_out" if self.held_out else "trained"][name])

    def city(self) -> str:
        return self.one_of("cities")

    def person(self) -> str:
        first = self.one_of("names")
        return f"{first} {self.one_of('surnames')}" if self.draw.random() < 0.6 else first

    def number(self, low: int, high: int) -> int:
        while True:
            number = self.draw.randint(low, high)
            if (number % 9 == HELD_OUT_REST) is self.held_out:
                return number

    def mixed_number(self) -> int:
        return self.number(1, self.draw.choice((20, 100, 1000, 10000)))

    def time(self) -> str:
        return f"{self.draw.randrange(24):02}:{self.draw.randrange(60):02}"

    def order(self) -> str:
        return f"{self.draw.choice('ABCDEFGHKMPRSTX')}-{self.number(100, 99999)}"


@dataclass(frozen=True)
class Case:
    """One use of a tool. `values`: the arguments by the keys of the tool's parameters. `results`: forms that the
    tool's result may have. `answer`: the assistant's sentence after the result."""

    question: str
    values: dict[str, Any]
    results: list[Any]
    answer: str


@dataclass(frozen=True)
class Family:
    """A tool under several names. `parameters`: key → JSON type, and the names that the parameter may have."""

    names: tuple[tuple[str, str], ...]
    parameters: dict[str, tuple[str, tuple[str, ...]]]
    make: Callable[[Values], Case]


def pick(values: Values, *phrasings: str, **said: Any) -> str:
    return values.draw.choice(phrasings).format(**said)


def weather(v: Values) -> Case:
    city, degrees, sky = v.city(), v.draw.randint(-15, 40), v.draw.choice(SKIES)
    question = pick(
        v, "What is the weather in {c}?", "What's the weather like in {c} today?", "Weather in {c}?",
        "Is it warm in {c}?",
        "How is the weather in {c} right now?", "Do I need a coat in {c}?", "Tell me the weather for {c}.",
        "How hot is it in {c}?", "I am flying to {c}. What weather should I expect?", "Is it raining in {c}?",
        "What is the temperature in {c}?", "Do I need an umbrella in {c}?", "How cold is it in {c} today?",
        "Should I pack a jacket for {c}?", "Is it sunny in {c}?", c=city,
    )  # fmt: skip
    results = [
        {"temperature_c": degrees, "sky": sky}, {"city": city, "temperature": degrees, "conditions": sky},
        f"{degrees} °C, {sky}", f"{degrees} degrees and {sky}", {"temp": degrees, "sky": sky, "unit": "C"},
    ]  # fmt: skip
    return Case(question, {"city": city, "unit": "celsius"}, results, f"It is {degrees} °C and {sky} in {city}.")


def local_time(v: Values) -> Case:
    city, time = v.city(), v.time()
    question = pick(
        v, "What time is it in {c}?", "What's the time in {c}?", "Tell me the local time in {c}.", "Time in {c}?",
        "How late is it in {c} now?", "I want to call someone in {c}. What time is it there?", c=city,
    )  # fmt: skip
    return Case(
        question, {"city": city}, [{"time": time}, time, {"city": city, "time": time}], f"It is {time} in {city}."
    )


def convert(v: Values) -> Case:
    source, target = v.one_of("currencies"), v.draw.choice(VALUES["trained"]["currencies"])
    if source == target:
        target = "USD" if source != "USD" else "EUR"
    if v.draw.random() < 0.5:
        source, target = target, source
    amount: float = v.mixed_number()
    if v.draw.random() < 0.2:
        amount += v.draw.choice((0.5, 0.25, 0.99))
    money = round(v.draw.uniform(1, 5000), 2)
    words = CURRENCY_WORDS if v.draw.random() < 0.3 else {}
    question = pick(
        v, "How much is {a} {s} in {t}?", "Convert {a} {s} to {t}.", "What are {a} {s} in {t}?", "{a} {s} in {t}?",
        "How many {t} do I get for {a} {s}?", "I have {a} {s}. What is that in {t}?", "Change {a} {s} into {t} please.",
        a=amount, s=words.get(source, source), t=words.get(target, target),
    )  # fmt: skip
    results = [{"amount": money, "currency": target}, {"result": money}, f"{money}", f"{money} {target}"]
    values = {"amount": amount, "source": source, "target": target}
    return Case(question, values, results, f"{amount} {source} is {money} {target}.")


def find_orders(v: Values) -> Case:
    person, order, status = v.person(), v.order(), v.draw.choice(STATUSES)
    question = pick(
        v, "Which orders does {p} have?", "Find the orders of {p}.", "Show me {p}'s orders.", "What did {p} order?",
        "Has {p} ordered anything?", "Look up the orders for the customer {p}.", "Any orders from {p}?", p=person,
    )  # fmt: skip
    results = [
        {"orders": [{"id": order, "status": status}]}, [{"order": order, "status": status}], f"{order}: {status}",
        {"customer": person, "orders": [{"id": order, "status": status}]},
    ]  # fmt: skip
    return Case(question, {"customer": person}, results, f"{person} has the order {order}, which is {status}.")


def order_status(v: Values) -> Case:
    order, status = v.order(), v.draw.choice(STATUSES)
    question = pick(
        v, "Where is my order {o}?", "What is the status of order {o}?", "Is {o} shipped yet?", "Track order {o}.",
        "Has order {o} arrived?", "I am waiting for order {o}. What happened to it?", o=order,
    )  # fmt: skip
    return Case(question, {"order": order}, [{"status": status}, status, {"id": order, "status": status}],
                f"Order {order} is {status}.")  # fmt: skip


def add(v: Values) -> Case:
    a, b = v.mixed_number(), v.mixed_number()
    question = pick(
        v, "What is {a} plus {b}?", "Add {a} and {b}.", "How much is {a} + {b}?", "What is the sum of {a} and {b}?",
        "{a} + {b} = ?", "Can you add {b} to {a}?" if a == b else "Please add {a} and {b} for me.", a=a, b=b,
    )  # fmt: skip
    return Case(
        question, {"a": a, "b": b}, [{"sum": a + b}, str(a + b), {"result": a + b}], f"{a} plus {b} is {a + b}."
    )


def multiply(v: Values) -> Case:
    a, b = v.mixed_number(), v.mixed_number()
    question = pick(
        v, "What is {a} times {b}?", "Multiply {a} by {b}.", "How much is {a} x {b}?", "{a} * {b} = ?",
        "What is the product of {a} and {b}?", "Please multiply {a} and {b}.", a=a, b=b,
    )  # fmt: skip
    results = [{"product": a * b}, str(a * b), {"result": a * b}]
    return Case(question, {"a": a, "b": b}, results, f"{a} times {b} is {a * b}.")


def remind(v: Values) -> Case:
    task, time = v.one_of("tasks"), v.time()
    question = pick(
        v, "Remind me to {x} at {t}.", "Please remind me at {t} to {x}.", "Set a reminder at {t}: {x}.",
        "At {t} I have to {x}. Remind me.", "I need a reminder to {x} at {t}.", x=task, t=time,
    )  # fmt: skip
    results = [{"ok": True}, "done", {"id": v.number(1, 999)}, {"status": "set", "time": time}]
    return Case(question, {"text": task, "time": time}, results, f"I will remind you to {task} at {time}.")


def stock(v: Values) -> Case:
    company, price = v.one_of("companies"), round(v.draw.uniform(5, 900), 2)
    question = pick(
        v, "What is the stock price of {c}?", "How much is a share of {c}?", "Price of {c} stock?",
        "What does a share of {c} cost?", "How is the stock of {c} doing?", "Look up {c} on the stock market.",
        c=company,
    )  # fmt: skip
    results = [{"price": price}, {"company": company, "price": price}, f"{price}", f"{price} USD"]
    return Case(question, {"company": company}, results, f"A share of {company} costs {price} USD.")


def contact(v: Values) -> Case:
    person, phone = v.person(), f"+{v.draw.randint(1, 99)} {v.draw.randint(100, 999)} {v.draw.randint(1000, 99999)}"
    question = pick(
        v, "What is {p}'s phone number?", "How can I reach {p}?", "Find the number of {p}.", "I need to phone {p}.",
        "Give me the phone number of {p}.", "Look up {p} in my contacts.", p=person,
    )  # fmt: skip
    results = [{"phone": phone}, phone, {"name": person, "phone": phone}]
    return Case(question, {"name": person}, results, f"The number of {person} is {phone}.")


def now(v: Values) -> Case:
    time = v.time()
    question = pick(v, "What time is it?", "What's the time?", "How late is it?", "Tell me the time.", "Time please.")
    return Case(question, {}, [{"time": time}, time, {"now": time}], f"It is {time}.")


def population(v: Values) -> Case:
    country = v.draw.choice(["Peru", "Portugal", "Kenya", "Vietnam", "Norway", "Chile", "Iceland", "Morocco"])
    people = v.draw.randint(400, 99000) * 1000
    question = pick(v, "How many people live in {c}?", "What is the population of {c}?", c=country)
    return Case(question, {"country": country}, [{"population": people}], f"{people} people live in {country}.")


def table(v: Values) -> Case:
    place, people = v.draw.choice(["Luigi's", "Blue Moon", "The Anchor", "Sakura", "Casa Verde"]), v.number(2, 30)
    question = pick(v, "Book a table for {n} at {r}.", "Reserve a table at {r} for {n} people.", n=people, r=place)
    return Case(question, {"restaurant": place, "people": people}, [{"ok": True}], f"I booked a table for {people}.")


TEXT, NUMBER, INTEGER = "string", "number", "integer"
ENUMS = {"unit": ["celsius", "fahrenheit"]}
OPTIONAL = {"unit": 0.4}  # how often an offered tool has the parameter
PLACE = (TEXT, ("city", "location", "place", "city_name"))
FAMILIES = {
    "weather": Family(
        (("get_weather", "The current weather in a city."), ("weather", "Get the weather of a place."),
         ("get_current_weather", "Returns temperature and sky of a location.")),
        {"city": PLACE, "unit": (TEXT, ("unit", "units"))}, weather,
    ),
    "local_time": Family(
        (("get_time", "The local time in a city."), ("local_time", "What time it is at a place.")),
        {"city": PLACE}, local_time,
    ),
    "convert": Family(
        (("convert_currency", "Convert an amount of money into another currency."), ("exchange", "Exchange money."),
         ("currency_converter", "Converts money from one currency to another.")),
        {"amount": (NUMBER, ("amount", "value")), "source": (TEXT, ("from_currency", "source", "base")),
         "target": (TEXT, ("to_currency", "target", "quote"))}, convert,
    ),
    "find_orders": Family(
        (("search_orders", "Find the orders of a customer."), ("list_orders", "All orders of one customer.")),
        {"customer": (TEXT, ("customer", "customer_name", "name"))}, find_orders,
    ),
    "order_status": Family(
        (("get_order_status", "The status of one order."), ("track_order", "Where an order is.")),
        {"order": (TEXT, ("order_id", "id", "order"))}, order_status,
    ),
    "add": Family(
        (("add_numbers", "Add two numbers."), ("add", "The sum of two numbers.")),
        {"a": (NUMBER, ("a", "x", "first")), "b": (NUMBER, ("b", "y", "second"))}, add,
    ),
    "multiply": Family(
        (("multiply_numbers", "Multiply two numbers."), ("multiply", "The product of two numbers.")),
        {"a": (NUMBER, ("a", "x", "first")), "b": (NUMBER, ("b", "y", "second"))}, multiply,
    ),
    "remind": Family(
        (("set_reminder", "Remind the user of something at a time."), ("remind", "Create a reminder.")),
        {"text": (TEXT, ("text", "task", "what")), "time": (TEXT, ("time", "at"))}, remind,
    ),
    "stock": Family(
        (("get_stock_price", "The price of a company's stock."), ("stock_price", "What a share of a company costs.")),
        {"company": (TEXT, ("company", "company_name"))}, stock,
    ),
    "contact": Family(
        (("find_contact", "Find a person in the contacts."), ("get_phone_number", "The phone number of a person.")),
        {"name": (TEXT, ("name", "person", "contact"))}, contact,
    ),
    "now": Family((("now", "The current time."), ("get_current_time", "What time it is here.")), {}, now),
}  # fmt: skip
# Tools that no training has.
UNTRAINED = {
    "population": Family((("get_population", "How many people live in a country."),), {"country": (TEXT, ("country",))},
                         population),
    "table": Family((("book_table", "Book a table in a restaurant."),),
                    {"restaurant": (TEXT, ("restaurant",)), "people": (INTEGER, ("people",))}, table),
}  # fmt: skip
# Of two families with the same question only one is offered.
RIVALS = {"now": "local_time", "local_time": "now"}


@dataclass(frozen=True)
class OfferedTool:
    """A family under one name, with one name for each of its parameters."""

    family: Family
    spec: ToolSpec
    keys: dict[str, str]

    def arguments(self, case: Case) -> dict[str, Any]:
        return {self.keys[key]: value for key, value in case.values.items() if key in self.keys}


def offer(family: Family, draw: random.Random) -> OfferedTool:
    """With a schema as one of the clients writes it."""
    name, description = draw.choice(family.names)
    keys = {
        key: draw.choice(names)
        for key, (_, names) in family.parameters.items()
        if draw.random() < OPTIONAL.get(key, 1.0)
    }
    described = draw.random() < 0.3
    style = draw.choice(("plain", "plain", "closed", "pydantic", "pydantic-closed"))
    properties: dict[str, Any] = {}
    for key, name_of_key in keys.items():
        words = name_of_key.replace("_", " ")
        properties[name_of_key] = {
            **({"title": words.title()} if style.startswith("pydantic") else {}),
            "type": family.parameters[key][0],
            **({"enum": ENUMS[key]} if key in ENUMS else {}),
            **({"description": f"The {words}."} if described else {}),
        }
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if style.startswith("pydantic"):
        schema = {"properties": properties, "required": list(properties), "title": f"{name}_args", "type": "object"}
    elif properties:
        schema["required"] = list(properties)
    if style.endswith("closed"):
        schema["additionalProperties"] = False
    return OfferedTool(family, ToolSpec(name, description, schema), keys)


@dataclass(frozen=True)
class Conversation:
    """What a user and an assistant said after the system message, in the words of the chat template: the assistant's
    messages are learnt. `kind`: the family that was called first, `plain` or `unoffered`."""

    kind: str
    messages: list[Message]


@dataclass(frozen=True)
class Offer:
    """A system message with tools, and conversations that begin with it."""

    system: Message
    conversations: list[Conversation]


def exchange(tool: OfferedTool, values: Values) -> list[Message]:
    """A question, the call, its result and the answer, in the form of the API."""
    case = tool.family.make(values)
    result = values.draw.choice(case.results)
    text = result if isinstance(result, str) else json.dumps(result)
    call = call_in_history("id", tool.spec.name, tool.arguments(case))
    return [
        {"role": "user", "content": phrased(case.question, values.draw)},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        result_in_history("id", tool.spec.name, text),
        {"role": "assistant", "content": case.answer},
    ]  # fmt: skip


def phrased(question: str, draw: random.Random) -> str:
    if draw.random() < 0.15:
        question = question[0].lower() + question[1:] if draw.random() < 0.5 else question.rstrip("?.")
    return draw.choice(("{}", "{}", "{}", "{}", "Hi! {}", "{} Thanks!", "Quick question: {}")).format(question)


def plain_questions() -> list[tuple[str, str]]:
    """Questions that no tool answers."""
    lines = read_lines("questions.jsonl")
    taken = ("plus", "times", "minus", "divided", "time is it", "weather", "How many")
    pairs = [(row["question"], row["answer"]) for row in lines if not any(one in row["question"] for one in taken)]
    greetings = [("Hello!", "Hello! How can I help you?"), ("Thank you!", "You are welcome!")]
    return [*pairs, *greetings * 3]


HELD_OUT_EVERY = 8  # of the plain questions
DEFAULT_SYSTEM = {"role": "system", "content": "You are a helpful AI assistant named SmolLM, trained by Hugging Face"}


def make_offer(draw: random.Random, size: int, *, held_out: bool = False, untrained: bool = False) -> Offer:
    """Tools, and `size` conversations with them. `held_out`: values that the training never has. `untrained`: each
    asks for a tool that the training never has."""
    values = Values(draw, held_out=held_out)
    if not held_out and draw.random() < WITHOUT_TOOLS:
        return Offer(DEFAULT_SYSTEM, [Conversation(*converse({}, values, None)) for _ in range(size)])
    names: list[str] = []
    for name in draw.sample(sorted(FAMILIES), draw.choice((1, 2, 2, 3, 3, 4))):
        if RIVALS.get(name) not in names:
            names.append(name)
    families = [FAMILIES[name] for name in names]
    if untrained:
        names.append(draw.choice(sorted(UNTRAINED)))
        families.append(UNTRAINED[names[-1]])
    tools = dict(zip(names, (offer(family, draw) for family in families), strict=True))
    if len({tool.spec.name for tool in tools.values()}) < len(tools):
        return make_offer(draw, size, held_out=held_out, untrained=untrained)
    specs = [tool.spec for tool in draw.sample(list(tools.values()), len(tools))]
    system = [{"role": "system", "content": draw.choice(SYSTEM_PROMPTS)}] if draw.random() < WITH_SYSTEM else []
    made = []
    for _ in range(size):
        kind, said = converse(tools, values, names[-1] if untrained else None)
        rendered = template_messages(DIALECT, [*[dict(one) for one in system], *said], specs)
        made.append(Conversation(kind, list(rendered[1:])))
    return Offer(dict(rendered[0]), made)


def converse(tools: dict[str, OfferedTool], values: Values, wanted: str | None) -> tuple[str, list[Message]]:
    draw = values.draw
    chance = draw.random()
    if wanted is None and chance < (PLAIN if tools else 0.8):
        numbered = enumerate(plain_questions())
        question, answer = draw.choice(
            [pair for number, pair in numbered if (number % HELD_OUT_EVERY == 0) is values.held_out]
        )
        return "plain", [{"role": "user", "content": phrased(question, draw)}, {"role": "assistant", "content": answer}]
    if wanted is None and (not tools or chance < PLAIN + UNOFFERED):
        absent = [name for name in FAMILIES if name not in tools and RIVALS.get(name) not in tools]
        question = FAMILIES[draw.choice(absent)].make(values).question
        return "unoffered", [{"role": "user", "content": question}, {"role": "assistant", "content": NO_TOOL}]
    name = wanted or draw.choice(sorted(tools))
    said = exchange(tools[name], values)
    if draw.random() < TWICE:
        said += exchange(tools[draw.choice(sorted(tools))], values)
    return name, said


def offers(count: int, size: int, seed: int) -> list[Offer]:
    """The training data: `count` offers with `size` conversations each."""
    draw = random.Random(f"tool-agent/{seed}")
    return [make_offer(draw, size) for _ in range(count)]


def judged(count: int, size: int, *, untrained: bool = False) -> list[Offer]:
    """Held-out offers, of another seed and with values that the training never has."""
    draw = random.Random(f"tool-agent/held-out/{untrained}")
    return [make_offer(draw, size, held_out=True, untrained=untrained) for _ in range(count)]
