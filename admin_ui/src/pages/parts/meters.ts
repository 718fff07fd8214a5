// The meters of prices and invoices.
export const METERS = ["input", "cached_input", "output", "embedding"] as const;
export const METERS_SAID: Record<(typeof METERS)[number], string> = {
  input: "Input",
  cached_input: "Cached input",
  output: "Output",
  embedding: "Embedding",
};

/** The name of a meter of any version; an unknown meter has its own name. */
export function meterSaid(meter: string): string {
  return (METERS_SAID as Record<string, string>)[meter] ?? meter;
}
