// Exact conversion between amounts and text. Picos (10^-12 of a currency unit) are integers throughout.

/** An integer from the API that may exceed 2^53. */
export type Exact = number | bigint;

const PICOS = 1_000_000_000_000n;
const PLACES = 12;

export function exact(value: Exact): bigint {
  return typeof value === "bigint" ? value : BigInt(value);
}

export function sum(values: Iterable<Exact>): bigint {
  let total = 0n;
  for (const value of values) total += exact(value);
  return total;
}

/** Picos as a decimal without loss, grouped: 1234500000000n → "1.2345"; at least two places. */
export function decimal(picos: Exact, group = true): string {
  const value = exact(picos);
  const size = value < 0n ? -value : value;
  const whole = (size / PICOS).toString();
  const rest = (size % PICOS)
    .toString()
    .padStart(PLACES, "0")
    .replace(/0{0,10}$/, "");
  return `${value < 0n ? "−" : ""}${group ? grouped(whole) : whole}.${rest}`;
}

/** The same, rounded half up to `places`. */
export function rounded(picos: Exact, places = 2): string {
  const value = exact(picos);
  const step = 10n ** BigInt(PLACES - places);
  const size = ((value < 0n ? -value : value) + step / 2n) / step;
  const scale = 10n ** BigInt(places);
  const rest = places === 0 ? "" : `.${(size % scale).toString().padStart(places, "0")}`;
  return `${value < 0n && size > 0n ? "−" : ""}${grouped((size / scale).toString())}${rest}`;
}

/** A typed number without its thousands separators; null where a comma does not group thousands:
 * "12,50" is not 1,250. */
export function ungrouped(text: string): string | null {
  const whole = text.trim().replaceAll(/[\u2009\u202f ]/g, "");
  if (!whole.includes(",")) return whole;
  return /^[-−]?\d{1,3}(?:,\d{3})+(?:\.\d*)?$/.test(whole) ? whole.replaceAll(",", "") : null;
}

/** A decimal of currency units as picos; null when it is not one, or finer than a pico. */
export function picosOf(text: string): bigint | null {
  const match = /^([-−]?)(\d+)(?:\.(\d{0,12}))?$/.exec(ungrouped(text) ?? "");
  if (match === null) return null;
  const value = BigInt(match[2]!) * PICOS + BigInt((match[3] ?? "").padEnd(PLACES, "0"));
  return match[1] === "" ? value : -value;
}

/** An integer of a currency's smallest unit as a decimal: 12345 with two places → "123.45". */
export function minorText(minor: Exact, places: number, group = true): string {
  const value = exact(minor);
  const digits = (value < 0n ? -value : value).toString().padStart(places + 1, "0");
  const whole = digits.slice(0, digits.length - places);
  const rest = places === 0 ? "" : `.${digits.slice(digits.length - places)}`;
  return `${value < 0n ? "−" : ""}${group ? grouped(whole) : whole}${rest}`;
}

/** A typed decimal as an integer of the smallest unit; null if the text is no decimal, or finer. */
export function minorOf(text: string, places: number): bigint | null {
  const picos = picosOf(text);
  const unit = 10n ** BigInt(PLACES - places);
  return picos === null || picos % unit !== 0n ? null : picos / unit;
}

export function grouped(digits: string): string {
  return digits.replaceAll(/\B(?=(\d{3})+$)/g, ",");
}

/** A count with its thousands: 1234567 → "1,234,567". */
export function count(value: Exact): string {
  const digits = exact(typeof value === "number" ? Math.round(value) : value).toString();
  return digits.startsWith("-") ? `−${grouped(digits.slice(1))}` : grouped(digits);
}

/** Three significant digits, or four before the point, without an exponent. */
function digits(value: number): string {
  return Math.abs(value) >= 999.5 ? String(Math.round(value)) : value.toPrecision(3);
}

/** A rate in units per second: 4.25 → "4.3", 1234 → "1.23 k". */
export function rate(perSecond: number): string {
  return perSecond < 10 ? perSecond.toFixed(1).replace(/\.0$/, "") : brief(Math.round(perSecond));
}

/** A short count: 1234567 → "1.23 M". */
export function brief(value: Exact): string {
  const size = Math.abs(Number(value));
  for (const [unit, name] of [
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ] as const) {
    if (size >= unit * 0.9995) return `${digits(Number(value) / unit)} ${name}`;
  }
  return Number.isInteger(Number(value)) ? String(value) : digits(Number(value));
}

export function bytes(value: Exact): string {
  const size = Number(value);
  for (const [unit, name] of [
    [2 ** 40, "TiB"],
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
  ] as const) {
    if (size >= unit) return `${digits(size / unit)} ${name}`;
  }
  return `${size} B`;
}

/** A readable duration: 0.0421 → "42 ms", 95 → "1 min 35 s". */
export function duration(seconds: number): string {
  // Rounded before the split, else "1 min 60 s" would appear.
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${seconds < 9.995 ? seconds.toFixed(2) : seconds.toFixed(1)} s`;
  const [whole, minutes] = [Math.round(seconds), Math.round(seconds / 60)];
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.round(seconds / 86_400)} days`;
}

export function percent(part: Exact, whole: Exact): number {
  return Number(whole) === 0 ? 0 : (Number(part) / Number(whole)) * 100;
}
