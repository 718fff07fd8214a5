// The page arena as cells, groups and colours: what the map, its legend and the chart of occupancy agree on. Nothing here
// draws or asks.
import type { components } from "../api/schema";

export type EngineEvent = components["schemas"]["EngineEvent"];
export type Owner = components["schemas"]["LiveOwner"];
type Arena = components["schemas"]["LiveArena"];

/** Owners that are told apart by colour: the KV pages of a tier and model, all adapters, what is cached, what is free. */
export interface Group {
  key: string;
  label: string;
  pages: number;
  /** As #rrggbb. */
  colour: string;
}

export type Rgb = readonly [number, number, number];
export interface Colours {
  owners: readonly Rgb[];
  groups: ReadonlyMap<string, Rgb>;
  surface: Rgb;
  ink: Rgb;
}

// Of the eight of the charts: tiers take these in their order; adapters and what is cached have theirs.
const TIER_HUES = [0, 2, 1, 3, 5, 6];
const ADAPTER_HUE = 4;
const CACHED_HUE = 7;
const CELL_PX_MAX = 20;
const CELL_PX_MIN = 2;
const HEIGHT_PX = 300;

export function groupKey(owner: Owner): string {
  return owner.kind === "kv" ? `kv/${owner.tier}/${owner.model}` : owner.kind;
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

/** Of a group's key, or of `model/NAME`: all that is of one model. */
export function isOf(owner: Owner, key: string): boolean {
  return key.startsWith("model/") ? owner.model === key.slice("model/".length) : groupKey(owner) === key;
}

/** Those that have pages, KV or cached. */
export function modelsOf(event: EngineEvent): string[] {
  return [...new Set(event.arena.owners.flatMap((owner) => (owner.model !== null && owner.pages > 0 ? [owner.model] : [])))].sort();
}

/** One colour for each owner of the event: a tier has its hue, its second model a paler one; neighbouring adapters
 * differ a little, so that one sees where each ends. */
export function coloursOf(event: EngineEvent, style: CSSStyleDeclaration): Colours {
  const colour = (name: string) => rgb(style.getPropertyValue(name));
  const hue = (index: number) => colour(`--chart-${index}`);
  const surface = colour("--surface");
  const tiers = event.tiers.map((tier) => tier.tier);
  const models = modelsOf(event);
  const groups = new Map<string, Rgb>([["free", colour("--sunk")]]);
  const owners = event.arena.owners.map((owner, index) => {
    if (owner.kind === "cached") groups.set("cached", mix(hue(CACHED_HUE), surface, 0.45));
    else if (owner.kind === "adapter") groups.set("adapter", hue(ADAPTER_HUE));
    else if (owner.kind === "kv") {
      const tier = hue(TIER_HUES[tiers.indexOf(owner.tier ?? "") % TIER_HUES.length] ?? 0);
      groups.set(groupKey(owner), mix(tier, surface, Math.min(0.6, 0.35 * Math.max(0, models.indexOf(owner.model ?? "")))));
    }
    const own = groups.get(groupKey(owner))!;
    return owner.kind === "adapter" && index % 2 === 1 ? mix(own, surface, 0.3) : own;
  });
  return { owners, groups, surface, ink: colour("--ink") };
}

export function tierColour(event: EngineEvent, tier: string, style: CSSStyleDeclaration): string {
  const index = event.tiers.findIndex((one) => one.tier === tier);
  return style.getPropertyValue(`--chart-${TIER_HUES[index % TIER_HUES.length] ?? 0}`).trim();
}

/** From the highest tier down, then adapters, cached, free; but for the free, those that have no page are left out. */
export function groupsOf(event: EngineEvent, colours: Colours): Group[] {
  const many = modelsOf(event).length > 1;
  const found = new Map<string, Group>([["free", { key: "free", label: "Free", pages: 0, colour: hex(colours.groups.get("free")!) }]]);
  for (const owner of event.arena.owners) {
    const key = groupKey(owner);
    const group = found.get(key) ?? { key, label: labelOf(owner, many), pages: 0, colour: hex(colours.groups.get(key)!) };
    found.set(key, { ...group, pages: group.pages + owner.pages });
  }
  const tiers = event.tiers.map((tier) => tier.tier);
  const rank = ({ key }: Group) => {
    const at = ["adapter", "cached", "free"].indexOf(key);
    return at >= 0 ? 1000 + at : tiers.indexOf(key.split("/")[1] ?? "");
  };
  return [...found.values()].sort((a, b) => rank(a) - rank(b) || a.key.localeCompare(b.key));
}

function labelOf(owner: Owner, many: boolean): string {
  if (owner.kind === "adapter") return "Adapters";
  if (owner.kind === "cached") return "Cached";
  if (owner.kind === "free") return "Free";
  return many ? `KV ${owner.tier}, ${owner.model}` : `KV ${owner.tier}`;
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
