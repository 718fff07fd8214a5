// The page arena as cells, groups and colours, shared by the map, its legend and the chart over time. Pure functions.
import type { components } from "../../api/schema";

export type EngineEvent = components["schemas"]["EngineEvent"];
export type Owner = components["schemas"]["LiveOwner"];
type Arena = components["schemas"]["LiveArena"];

/** What the map is coloured by, besides adapters, cached and free pages. */
export type By = "model" | "tier";

/** Owners that share a colour. */
export interface Group {
  key: string;
  label: string;
  pages: number;
  paint: Paint;
}

/** A colour, and the index of a mark in MARKS, which tells cells apart without colours. */
export interface Paint {
  colour: Rgb;
  mark: number;
}

export type Rgb = readonly [number, number, number];
export interface Palette {
  by: By;
  tiers: readonly string[];
  /** The index of each model by name: a model has the same colour on every page. */
  models: ReadonlyMap<string, number>;
  hues: readonly Rgb[];
  surface: Rgb;
  sunk: Rgb;
  ink: Rgb;
}

/** SVG paths in a square of 10 by 10; the first is empty. */
export const MARKS = [
  "",
  "M3.5 3.5h3v3h-3z",
  "M2 4.2h6v1.6H2z",
  "M4.2 2h1.6v6H4.2z",
  "M2 2h2.4v2.4H2zM5.6 5.6H8V8H5.6z",
  "M2 2h6L2 8z",
  "M4.2 2h1.6v2.2H8v1.6H5.8V8H4.2V5.8H2V4.2h2.2z",
  "M2 2.4h6V4H2zM2 6h6v1.6H2z",
  "M2 6.4L6.4 2H8v1.6L3.6 8H2z",
] as const;
const ADAPTER_MARK = MARKS.length - 1;
// Indices into the eight chart colours: tiers use these in their order; cached pages have their own.
const TIER_HUES = [0, 2, 1, 3, 5, 6];
const CACHED_HUE = 7;
const CELL_PX_MAX = 20;
const CELL_PX_MIN = 2;
const HEIGHT_PX = 300;

/** The finest grouping kept of a sample: KV pages by tier and model, all adapters, cached, free. */
export function ownerKey(owner: Owner): string {
  return owner.kind === "kv" ? `kv/${owner.tier}/${owner.model}` : owner.kind;
}

/** The group of an owner's key. */
export function groupKey(key: string, by: By): string {
  const [kind, tier, ...model] = key.split("/"); // a model's name may have a slash in it
  return kind !== "kv" ? key : by === "tier" ? `kv/${tier}` : `kv/${model.join("/")}`;
}

/** The owner's index for each cell, in page order. One cell is `map_cell_pages` pages. */
export function cells({ map, map_cell_pages: each }: Arena): Uint16Array {
  const length = map.reduce((total, [, run]) => total + Math.ceil(run / each), 0);
  const owners = new Uint16Array(length);
  let at = 0;
  for (const [owner, run] of map) {
    const end = at + Math.ceil(run / each);
    owners.fill(owner, at, end);
    at = end;
  }
  return owners;
}

/** A grid of squares in whole pixels that fills `width` at about the map's intended height. */
export function layout(width: number, count: number): { cell: number; columns: number; rows: number } {
  const fitting = Math.floor(Math.sqrt((width * HEIGHT_PX) / Math.max(1, count)));
  const cell = Math.max(CELL_PX_MIN, Math.min(CELL_PX_MAX, fitting));
  const columns = Math.max(1, Math.floor(width / cell));
  return { cell, columns, rows: Math.max(1, Math.ceil(count / columns)) };
}

/** Whether an owner is highlighted with a group: cached pages of a model belong to the model. */
export function isOf(owner: Owner, group: string, by: By): boolean {
  return (
    groupKey(ownerKey(owner), by) === group ||
    (by === "model" && owner.kind === "cached" && group === `kv/${owner.model}`)
  );
}

/** Models that have pages, KV or cached. */
export function modelsOf(event: EngineEvent): string[] {
  return [
    ...new Set(event.arena.owners.flatMap((owner) => (owner.model !== null && owner.pages > 0 ? [owner.model] : []))),
  ].sort();
}

export function paletteOf(
  by: By,
  tiers: readonly string[],
  models: ReadonlyMap<string, number>,
  style: CSSStyleDeclaration,
): Palette {
  const colour = (name: string) => rgb(style.getPropertyValue(name));
  const hues = Array.from({ length: 8 }, (_, index) => colour(`--chart-${index}`));
  return { by, tiers, models, hues, surface: colour("--surface"), sunk: colour("--sunk"), ink: colour("--ink") };
}

/** The paint of a group: tiers and models have hues, others are grey. From the ninth on, hues repeat
 * with another mark. */
export function paintOf(group: string, { by, tiers, models, hues, surface, sunk, ink }: Palette): Paint {
  if (group === "free") return { colour: sunk, mark: 0 };
  if (group === "cached") return { colour: mix(hues[CACHED_HUE]!, surface, 0.45), mark: 0 };
  if (group === "adapter") return { colour: mix(ink, surface, 0.25), mark: ADAPTER_MARK };
  const name = group.slice("kv/".length);
  const place = Math.max(0, by === "tier" ? tiers.indexOf(name) : (models.get(name) ?? 0));
  const hue = by === "tier" ? TIER_HUES[place % TIER_HUES.length]! : place % hues.length;
  return { colour: hues[hue]!, mark: (place + Math.floor(place / hues.length)) % ADAPTER_MARK };
}

/** One paint for each owner of the event; neighbouring adapters differ slightly in shade. */
export function paintsOf(event: EngineEvent, palette: Palette): Paint[] {
  return event.arena.owners.map((owner, index) => {
    const paint = paintOf(groupKey(ownerKey(owner), palette.by), palette);
    return owner.kind === "adapter" && index % 2 === 1
      ? { ...paint, colour: mix(paint.colour, palette.surface, 0.3) }
      : paint;
  });
}

/** The groups in order: tiers from the highest, or models, then adapters, cached and free. Groups without pages are
 * omitted, except free. `also`: keys to include, such as former owners. */
export function groupsOf(event: EngineEvent, palette: Palette, also: Iterable<string> = []): Group[] {
  const pages = new Map<string, number>([["free", 0]]);
  const add = (key: string, more: number) =>
    pages.set(groupKey(key, palette.by), (pages.get(groupKey(key, palette.by)) ?? 0) + more);
  for (const owner of event.arena.owners) add(ownerKey(owner), owner.pages);
  for (const key of also) add(key, 0);
  const rank = ({ key }: Group) => {
    const at = ["adapter", "cached", "free"].indexOf(key);
    if (at >= 0) return 1000 + at;
    const name = key.slice("kv/".length);
    return palette.by === "tier" ? palette.tiers.indexOf(name) : (palette.models.get(name) ?? 0);
  };
  const groups = [...pages].map(([key, held]): Group => ({
    key,
    label: labelOf(key, palette.by),
    pages: held,
    paint: paintOf(key, palette),
  }));
  return groups.sort((a, b) => rank(a) - rank(b) || a.key.localeCompare(b.key));
}

function labelOf(group: string, by: By): string {
  if (group === "adapter") return "Adapters";
  if (group === "cached") return "Cached";
  if (group === "free") return "Free";
  const name = group.slice("kv/".length);
  return by === "tier" ? `KV ${name}` : name;
}

/** The owner of a page, as text. */
export function ownerWords(owner: Owner): string {
  const adapter = nameOf(owner.adapter);
  if (owner.kind === "free") return "free";
  if (owner.kind === "cached") return `cached prefix of ${owner.model}, not in use`;
  if (owner.kind === "adapter") return `weights of ${owner.adapter === null ? "an adapter" : `the adapter ${adapter}`}`;
  return `KV of ${owner.tier}, ${owner.model}${owner.adapter === null ? "" : ` with ${adapter}`}`;
}

/** The digest is shown where the name is unknown. */
export function nameOf(adapter: string | null): string {
  return adapter !== null && /^[0-9a-f]{64}$/.test(adapter) ? `${adapter.slice(0, 12)}…` : (adapter ?? "");
}

export function rgb(text: string): Rgb {
  const value = Number.parseInt(text.trim().slice(1), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

export function mix(a: Rgb, b: Rgb, share: number): Rgb {
  const one = (at: 0 | 1 | 2) => Math.round(a[at] * (1 - share) + b[at] * share);
  return [one(0), one(1), one(2)];
}

export function hex([red, green, blue]: Rgb): string {
  return `#${((1 << 24) | (red << 16) | (green << 8) | blue).toString(16).slice(1)}`;
}
