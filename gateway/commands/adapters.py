"""`laneway adapters add|list`."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from adapters.header import AdapterRefused
from billing.errors import BillingRefused
from gateway import registry
from gateway.administration import tenant_of
from gateway.commands.console import Console, fail, json_option, pass_console, show_row, show_rows
from gateway.commands.database import read, sentence, write

COLUMNS = ("name", "tenant_id", "base_model", "active", "created_at", "id", "digest")


@click.group("adapters")
def adapters_group() -> None:
    """LoRA adapters and who may call them."""


@adapters_group.command("add")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", help="What callers write as `model`; without it: the directory's name.")
@click.option("--tenant", help="Its owner, a slug or an id; without it all tenants may call it.")
@click.option("--model", "base_model", help="Its base model; not needed where there is one.")
@json_option
@pass_console
def add_command(
    console: Console, directory: Path, name: str | None, tenant: str | None, base_model: str | None, as_json: bool
) -> None:
    """Check the PEFT adapter in DIRECTORY, copy it into the store and give it a name."""
    models = console.config.models
    if base_model is None:
        if len(models) != 1:
            fail(f"--model is needed: one of {', '.join(model.name for model in models)}")
        base_model = models[0].name
    base = base_model
    administration = console.administration
    try:
        stored = administration.store_adapter(directory, base)
    except (AdapterRefused, BillingRefused) as error:
        fail(f"{directory}: {sentence(error)}")
    except (OSError, ValueError) as error:
        fail(f"the adapter or its base model cannot be read: {error}")
    adapter = write(
        console,
        lambda c: administration.register_adapter(
            c,
            name=name or directory.resolve().name,
            tenant_id=None if tenant is None else tenant_of(c, tenant).id,
            base_model=base,
            digest=stored.digest,
        ),
    )
    show_row(msgspec.to_builtins(adapter), as_json=as_json)


@adapters_group.command("list")
@json_option
@pass_console
def list_command(console: Console, as_json: bool) -> None:
    """All adapters, by name."""
    found = read(console, registry.list_adapters)
    show_rows([msgspec.to_builtins(adapter) for adapter in found], COLUMNS, as_json=as_json)
