// What is shown, as a file. A text that a spreadsheet would take for a formula is written so that it is not one.

export type Cell = string | number | bigint | null | undefined;

export function safeCell(value: Cell): string {
  if (value === null || value === undefined) return "";
  // As billing/exports/amounts.py has it: no control characters, and no sign that begins a formula, full-width or not.
  const text = String(value).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, "");
  if (typeof value !== "string" || /^-?\d+(\.\d+)?$/.test(text)) return text;
  const harmless = /^[=+\-@\uff1d\uff0b\uff0d\uff20]/.test(text) ? `'${text}` : text;
  return harmless === text && !/[",;\n\r\t]/.test(text) ? text : `"${harmless.replaceAll('"', '""')}"`;
}

export function csvOf(header: readonly string[], rows: readonly (readonly Cell[])[]): string {
  return linesOf([header, ...rows]);
}

function linesOf(rows: readonly (readonly Cell[])[]): string {
  return rows.map((row) => `${row.map(safeCell).join(",")}\r\n`).join("");
}

/** A moment (Unix seconds) as every CSV has it: ISO 8601, UTC, with milliseconds. */
export function iso(at: number | null | undefined): string | null {
  return at === null || at === undefined ? null : new Date(at * 1000).toISOString();
}

export function saveCsv(name: string, header: readonly string[], rows: readonly (readonly Cell[])[]): void {
  saveFile(name, [csvOf(header, rows)]);
}

/** More rows than this are not read into one file: a spreadsheet opens 1,048,576. */
export const CSV_ROWS_MAX = 1_000_000;

/** Saves what `pages` has, as it is read. The text of each page becomes a blob of its own, which the browser may keep on
 * its disk: in this page's memory is never more than one page. `told` hears how many rows were read. Nothing is saved when
 * `pages` throws, or has more than CSV_ROWS_MAX rows (an Error). Returns the number of rows. */
export async function saveCsvOf<Row>(
  name: string,
  header: readonly string[],
  pages: AsyncIterable<readonly Row[]>,
  cells: (row: Row) => readonly Cell[],
  told: (rows: number) => void,
): Promise<number> {
  const parts = [new Blob([csvOf(header, [])])];
  let rows = 0;
  for await (const page of pages) {
    rows += page.length;
    if (rows > CSV_ROWS_MAX)
      throw new Error(`The list has more than ${CSV_ROWS_MAX.toLocaleString("en")} rows. Narrow it by its filters.`);
    if (page.length > 0) parts.push(new Blob([linesOf(page.map(cells))]));
    told(rows);
  }
  saveFile(name, parts);
  return rows;
}

function saveFile(name: string, parts: BlobPart[]): void {
  const url = URL.createObjectURL(new Blob(parts, { type: "text/csv" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `${name}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
