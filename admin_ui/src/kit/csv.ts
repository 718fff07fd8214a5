// What is shown, as a file. A text that a spreadsheet would take for a formula is written so that it is not one.

export type Cell = string | number | bigint | null | undefined;

export function safeCell(value: Cell): string {
  if (value === null || value === undefined) return "";
  const text = String(value);
  if (typeof value !== "string" || /^-?\d+(\.\d+)?$/.test(text)) return text;
  const harmless = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return harmless === text && !/[",\n\r]/.test(text) ? text : `"${harmless.replaceAll('"', '""')}"`;
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
