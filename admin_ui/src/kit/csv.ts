// CSV files. A text that a spreadsheet would read as a formula is escaped.

export type Cell = string | number | bigint | null | undefined;

export function safeCell(value: Cell): string {
  if (value === null || value === undefined) return "";
  // The rules of billing/exports/amounts.py: no control characters, and no leading sign of a formula, full-width or
  // not.
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

/** A time (Unix seconds) in the format of all CSV files: ISO 8601, UTC, with milliseconds. */
export function iso(at: number | null | undefined): string | null {
  return at === null || at === undefined ? null : new Date(at * 1000).toISOString();
}

export function saveCsv(name: string, header: readonly string[], rows: readonly (readonly Cell[])[]): void {
  saveFile(name, [csvOf(header, rows)]);
}

/** More rows than this are not read into one file: a spreadsheet opens 1,048,576. */
export const CSV_ROWS_MAX = 1_000_000;

/** Saves all `pages` as one CSV and returns the number of rows. Each page becomes a blob of its own, which the browser
 * may keep on disk, so memory holds one page at a time. `told` receives the number of rows read so far. Throws, and
 * saves nothing, when `pages` throws or has more than CSV_ROWS_MAX rows. */
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
      throw new Error(`The list has more than ${CSV_ROWS_MAX.toLocaleString("en")} rows. Narrow it with the filters.`);
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
