// The page arena as cells, groups and colours: what the map, its legend and the chart of occupancy agree on. Nothing here
// draws or asks.
import type { components } from "../../api/schema";

export type EngineEvent = components["schemas"]["EngineEvent"];
export type Owner = components["schemas"]["LiveOwner"];
type Arena = components["schemas"]["LiveArena"];

/** What the map's colours tell apart, beside adapters, what is cached and what is free. */
export type By = "model" | "tier";

/** Owners that are of one colour. */
export interface Group {
  key: string;
  label: string;
  pages: number;
  paint: Paint;
}

/** A colour and, for who cannot tell colours, which of the MARKS its cells have. */
export interface Paint {
  colour: Rgb;
  mark: number;
}

export type Rgb = readonly [number, number, number];
export interface Palette {
  by: By;
  tiers: readonly string[];
  /** By name, its place among all: it has the same colour on every page. */
  models: ReadonlyMap<string, number>;
  hues: readonly Rgb[];
  surface: Rgb;
  sunk: Rgb;
  ink: Rgb;
}

/** In a square of 10 by 10; the first has none. */
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
// Of the eight of the charts: tiers take these in their order; what is cached has its own.
const TIER_HUES = [0, 2, 1, 3, 5, 6];
const CACHED_HUE = 7;
const CELL_PX_MAX = 20;
const CELL_PX_MIN = 2;
const HEIGHT_PX = 300;

/** The finest that is kept of a moment: KV pages by tier and model, all adapters, what is cached, what is free. */
export function ownerKey(owner: Owner): string {
  return owner.kind === "kv" ? `kv/${owner.tier}/${owner.model}` : owner.kind;
}

/** Which group an owner's key is in. */
export function groupKey(key: string, by: By): string {
  const [kind, tier, ...model] = key.split("/"); // a model's name may have a slash in it
  return kind !== "kv" ? key : by === "tier" ? `kv/${tier}` : `kv/${model.join("/")}`;
}

/** By page in order, the index of its owner. One cell is `map_cell_pages` pages. */
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

/** Squares of whole pixels that fill `width`, and about as high as the map should be. */
export function layout(width: number, count: number): { cell: number; columns: number; rows: number } {
  const fitting = Math.floor(Math.sqrt((width * HEIGHT_PX) / Math.max(1, count)));
  const cell = Math.max(CELL_PX_MIN, Math.min(CELL_PX_MAX, fitting));
  const columns = Math.max(1, Math.floor(width / cell));
  return { cell, columns, rows: Math.max(1, Math.ceil(count / columns)) };
}

/** Whether a group is picked out with this owner: what is cached of a model, with the model. */
export function isOf(owner: Owner, group: string, by: By): boolean {
  return (
    groupKey(ownerKey(owner), by) === group ||
    (by === "model" && owner.kind === "cached" && group === `kv/${owner.model}`)
  );
}

/** Those that have pages, KV or cached. */
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

/** Of a group: tiers and models have hues, all else is grey. From the ninth on, a hue comes again with another mark. */
export function paintOf(group: string, { by, tiers, models, hues, surface, sunk, ink }: Palette): Paint {
  if (group === "free") return { colour: sunk, mark: 0 };
  if (group === "cached") return { colour: mix(hues[CACHED_HUE]!, surface, 0.45), mark: 0 };
  if (group === "adapter") return { colour: mix(ink, surface, 0.25), mark: ADAPTER_MARK };
  const name = group.slice("kv/".length);
  const place = Math.max(0, by === "tier" ? tiers.indexOf(name) : (models.get(name) ?? 0));
  const hue = by === "tier" ? TIER_HUES[place % TIER_HUES.length]! : place % hues.length;
  return { colour: hues[hue]!, mark: (place + Math.floor(place / hues.length)) % ADAPTER_MARK };
}

/** One for each owner of the event; neighbouring adapters differ a little, so that one sees where each ends. */
export function paintsOf(event: EngineEvent, palette: Palette): Paint[] {
  return event.arena.owners.map((owner, index) => {
    const paint = paintOf(groupKey(ownerKey(owner), palette.by), palette);
    return owner.kind === "adapter" && index % 2 === 1
      ? { ...paint, colour: mix(paint.colour, palette.surface, 0.3) }
      : paint;
  });
}

/** Tiers from the highest down or models in their order, then adapters, cached, free; those without a page are left out,
 * but for the free. `also`: further owners' keys that have a place, as what held pages before. */
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

/** Whose it is, in a line. */
export function ownerWords(owner: Owner): string {
  const adapter = nameOf(owner.adapter);
  if (owner.kind === "free") return "free";
  if (owner.kind === "cached") return `cached of ${owner.model}, held by nobody`;
  if (owner.kind === "adapter") return `weights of ${owner.adapter === null ? "an adapter" : `the adapter ${adapter}`}`;
  return `KV of ${owner.tier}, ${owner.model}${owner.adapter === null ? "" : ` with ${adapter}`}`;
}

/** A digest stands where no name is known. */
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
