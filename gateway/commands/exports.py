"""`laneway billing export` writes a month's cost and usage to a file; `laneway billing check` checks any FOCUS file."""

from __future__ import annotations

from pathlib import Path

import click

from billing.database import Database
from billing.exports import export
from billing.exports.export import FORMATS, BooksDiffer, ExportSpec, ExportTooLarge, Format, Kind, MissingLibrary
from billing.focus import checker
from billing.focus.checker import FocusReport, UnreadableFile
from billing.focus.findings import Finding
from billing.focus.manifest import Manifest
from billing.texts import visible
from gateway.admin.writes import tenant_of
from gateway.commands.console import Console, fail, json_option, pass_console, show_json, show_row
from gateway.commands.database import with_database
from gateway.upkeep.exports import label

EXIT_FOUND = 1
# The default folder, below the data directory: the current directory is often a checkout, and a gateway deletes the
# oldest files in its own folder for exports.
EXPORTED = "exported"


@click.command("export")
@click.option("--month", required=True, metavar="YYYY-MM", help="Of each tenant's time zone.")
@click.option("--tenant", help="A slug or an id; without it: all.")
@click.option("--kind", type=click.Choice(tuple(FORMATS)), default="focus", show_default=True)
@click.option("--format", "format_", type=click.Choice(FORMATS["focus"]), help="Default: csv; for events jsonl.")
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder for the file and its manifest. Default: <data_dir>/exported.",
)
@json_option
@pass_console
def export_command(
    console: Console,
    month: str,
    tenant: str | None,
    kind: Kind,
    format_: Format | None,
    directory: Path | None,
    as_json: bool,
) -> None:
    """Write a month as FOCUS 1.2 (cost by hour, key, model, meter and tier) or as CloudEvents (each request).

    A closed month gives the same file each time; an open month is exported as it is now.
    """
    config = console.config
    folder = directory or config.data_dir / EXPORTED

    def work(database: Database) -> Manifest:
        tenant_id = None if tenant is None else database.read_sync(lambda c: tenant_of(c, tenant)).id
        chosen = format_ or ("csv" if kind == "focus" else "jsonl")
        spec = ExportSpec(kind=kind, format=chosen, month=month, tenant_id=tenant_id).check()
        label(database, spec, config.exports.provider_name)
        folder.mkdir(mode=0o700, exist_ok=True)
        return database.read_sync(lambda c: export.run(c, spec, folder, bytes_max=config.exports.bytes_max))

    try:
        made = with_database(config, work)
    except (BooksDiffer, MissingLibrary, ExportTooLarge, OSError) as error:
        fail(str(error))
    shown = {
        "file": str(_short(folder / made.file)),
        "rows": made.rows,
        "size_bytes": made.size_bytes,
        "sha256": made.sha256,
        "billed": ", ".join(f"{total:f} {currency}" for currency, total in sorted(made.billed.items())) or "-",
        "usage_rows": made.ledger.usage_rows,
        "corrections": made.ledger.corrections,
        "provisional": made.provisional,
    }
    show_row(shown, as_json=as_json)


def _short(path: Path) -> Path:
    """The path relative to the current directory, if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


@click.command("check")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--manifest",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Default: FILE.manifest.json, if it exists.",
)
@click.option("--strict", is_flag=True, help="Fail on recommendations that are not followed, too.")
@json_option
@click.pass_context
def check_command(context: click.Context, file: Path, manifest: Path | None, strict: bool, as_json: bool) -> None:
    """Test FILE (.csv, .jsonl or .parquet) against the rules of FOCUS 1.2, and against its manifest.

    Exit status 0: no rule is broken; 1: a rule is broken; 2: the file cannot be read.
    """
    try:
        report = checker.check_focus_file(file, manifest)
    except (UnreadableFile, OSError) as error:
        fail(f"{file}: {error}")
    if as_json:
        show_json(report)
    else:
        _show(report)
    if report.musts or (strict and report.shoulds):
        context.exit(EXIT_FOUND)


def _show(report: FocusReport) -> None:
    for finding in report.findings:
        click.echo(visible(line(finding)))
    if report.findings:
        click.echo()
        for rule, count in report.counts.items():
            click.echo(f"{count:8}  {rule}")
        click.echo()
    billed = ", ".join(f"{total} {currency}" for currency, total in report.billed.items()) or "-"
    click.echo(f"{report.file}: {report.rows} rows, {report.columns} columns, BilledCost {billed}")
    click.echo(f"sha256 {report.sha256}, compared with {report.manifest or 'no manifest: there is none'}")
    if report.unchecked:
        click.echo(f"looked at a part only, the file has too many values: {', '.join(report.unchecked)}")
    verdict = "FOCUS 1.2 holds" if report.sound else "FOCUS 1.2 does not hold"
    click.echo(f"{verdict}: {report.musts} rules broken, {report.shoulds} recommendations not followed")


def line(finding: Finding) -> str:
    """A finding as one line."""
    where = "file" if finding.row is None else f"row {finding.row}"
    column = "" if finding.column is None else f" {finding.column}"
    value = "" if finding.value is None else f" {finding.value!r}"
    return f"{where}{column}: [{finding.rule}, {finding.severity}]{value} {finding.message}"
