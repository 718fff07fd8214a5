"""`laneway billing check`: files of cost and usage, ours and anyone's."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from billing.focus import checker
from billing.focus.checker import CannotRead, Report
from billing.focus.findings import Finding
from gateway.commands.console import fail, json_option

EXIT_FOUND = 1


@click.command("check")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--manifest",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Without it: FILE.manifest.json, where it is there.",
)
@click.option("--strict", is_flag=True, help="Fail on recommendations that are not followed, too.")
@json_option
@click.pass_context
def check_command(context: click.Context, file: Path, manifest: Path | None, strict: bool, as_json: bool) -> None:
    """Test FILE (.csv, .jsonl or .parquet) against the rules of FOCUS 1.2, and against its manifest.

    Ends with 0 when no rule is broken, with 1 when one is, and with 2 when the file cannot be read.
    """
    try:
        report = checker.check(file, manifest)
    except (CannotRead, OSError) as error:
        fail(f"{file}: {error}")
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        _show(report)
    if report.musts or (strict and report.shoulds):
        context.exit(EXIT_FOUND)


def _show(report: Report) -> None:
    for finding in report.findings:
        click.echo(line(finding))
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
    """One finding, in one line."""
    where = "file" if finding.row is None else f"row {finding.row}"
    column = "" if finding.column is None else f" {finding.column}"
    value = "" if finding.value is None else f" {finding.value!r}"
    return f"{where}{column}: [{finding.rule}, {finding.severity}]{value} {finding.message}"
