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
  return [header, ...rows].map((row) => row.map(safeCell).join(",")).join("\r\n") + "\r\n";
}

export function saveCsv(name: string, header: readonly string[], rows: readonly (readonly Cell[])[]): void {
  const url = URL.createObjectURL(new Blob([csvOf(header, rows)], { type: "text/csv" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `${name}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
