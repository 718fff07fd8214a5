"""Background responses whose gateways were killed: their readable state, and their billed tokens."""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
import sqlalchemy as sa

from benchmarks.rows import REPO

sys.path.insert(0, str(REPO / "tests"))

from billing.ledger.messages import GATEWAY_DEAD
from engine.text.tokenizer import Tokenizer
from support.stack import Stack

ENDED = ("completed", "incomplete", "failed")


def read_background(stack: Stack, tenants: dict[str, str]) -> dict[str, Any]:
    """The response objects of these ids, each with its stored events as `events`."""
    stored: dict[str, Any] = {}
    with httpx.Client(base_url=stack.url, timeout=30) as client:
        for id_, tenant in tenants.items():
            headers = stack.headers(tenant)
            answer = client.get(f"/v1/responses/{id_}", headers=headers)
            events = client.get(f"/v1/responses/{id_}?stream=true", headers=headers)
            stored[id_] = answer.json() | {"events": _decoded(events.text)}
    return stored


def check_background(stack: Stack, recorded: dict[str, sa.Row[Any]], stored: dict[str, Any]) -> list[str]:
    """`recorded`: the rows of usage by request id."""
    tokenizer = Tokenizer.load(stack.model_dir)
    faults = []
    for id_, response in stored.items():
        row = recorded.get("req_" + id_.removeprefix("resp_"))
        billed = 0 if row is None else row.completion_tokens
        if response.get("status") not in ENDED:
            faults.append(f"{id_} has not ended: {response}")
            continue
        events = response["events"]
        if [event["sequence_number"] for event in events] != list(range(len(events))):
            faults.append(f"{id_} lacks events")
        if events[-1]["response"]["output"] != response["output"]:
            faults.append(f"{id_} has another output than its last event")
        text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        if text != "".join(part["text"] for item in response["output"] for part in item["content"]):
            faults.append(f"{id_} has another text than its events")
        usage = response["usage"]
        if billed != (0 if usage is None else usage["output_tokens"]):
            faults.append(f"{id_} is charged {billed} tokens; its usage says {usage}")
        # A response that ended with its gateway is billed for the tokens of its text.
        is_cut = row is not None and row.ending == GATEWAY_DEAD and response["status"] == "failed"
        if is_cut and billed != len(tokenizer.encode(text)):
            faults.append(f"{id_} is charged {billed} tokens for {text!r}")
    return faults


def _decoded(text: str) -> list[Any]:
    return [json.loads(event.split("data: ", 1)[1]) for event in text.split("\n\n") if "data: " in event]
