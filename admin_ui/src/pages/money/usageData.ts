// The data of the usage page: the largest series of a time range, and the rest as "others", by bucket. Three kinds of
// queries, for any number of keys: the sum of each series over the whole range, the largest series by bucket, and the
// total by bucket.
import { useQuery } from "@tanstack/react-query";
import { type AnswerOf, ApiError, api } from "../../api";
import { type Zone, exact } from "../../kit";
import { BUCKETS_MAX, type Part, type Unit, edges, partsOf } from "./usageTime";

export type By = "tenant" | "project" | "key" | "model" | "adapter" | "tier" | "source";
export type Measure = "cost" | "owed" | "tokens" | "input" | "cached" | "output" | "embedding" | "requests";
/** The value in the address for rows without the dimension: no adapter, for example. */
export const NONE = "-";

/** The sources of usage, by their ids in the address. */
export const SOURCES: Readonly<Record<string, string>> = { batch_line: "batch lines", request: "other requests" };

/** For each dimension: its name in the API, its value in a row, and its filter. */
export const GROUPS = {
  tenant: { group: "tenant_id", filter: "tenants" },
  project: { group: "project_id", filter: "project_ids" },
  key: { group: "api_key_id", filter: "api_key_ids" },
  model: { group: "model", filter: "models" },
  adapter: { group: "adapter", filter: "adapters" },
  tier: { group: "tier", filter: "tiers" },
  source: { group: "batch", filter: "batch" },
} as const satisfies Record<By, { group: string; filter: string }>;
export const BYS = Object.keys(GROUPS) as By[];

export interface Cell {
  requests: bigint;
  /** Prompt tokens that were not cached and have the input price. */
  input: bigint;
  cached: bigint;
  output: bigint;
  /** Prompt tokens of embeddings. */
  embedding: bigint;
  /** Cost of usage, or with corrections if requested; only in the chosen currency. */
  picos: bigint;
}

export interface UsageQuery {
  by: By;
  measure: Measure;
  top: number;
  currency: string;
  filters: Partial<Record<By, string>>;
  start: number;
  end: number;
  unit: Unit;
  zone: Zone;
}

export interface Usage {
  /** The grouping of this report. While another grouping loads, the report before it is shown. */
  by: By;
  /** Starts of the buckets. */
  at: number[];
  /** Largest first; null: rows without the dimension. */
  series: { id: string | null; cells: Cell[] }[];
  others: { number: number; cells: Cell[] } | null;
  currency: string;
  currencies: string[];
}

type Row = Cell & { id: string | null; currency: string; at: number };
type UsageRow = AnswerOf<"/v1/organization/usage/completions">["data"][number]["results"][number];
type CostRow = AnswerOf<"/v1/organization/costs">["data"][number]["results"][number];

const ZERO: Cell = { requests: 0n, input: 0n, cached: 0n, output: 0n, embedding: 0n, picos: 0n };
const FIELDS = ["requests", "input", "cached", "output", "embedding", "picos"] as const;
const AT_ONCE = 6;

export function measured(cell: Cell, measure: Measure): bigint {
  if (measure === "cost" || measure === "owed") return cell.picos;
  return measure === "tokens" ? tokensOf(cell) : cell[measure];
}

export function tokensOf(cell: Cell): bigint {
  return cell.input + cell.cached + cell.output + cell.embedding;
}

export function added(a: Cell, b: Cell, sign = 1n): Cell {
  return Object.fromEntries(FIELDS.map((name) => [name, a[name] + sign * b[name]])) as unknown as Cell;
}

export function summed(cells: readonly Cell[]): Cell {
  return cells.reduce((sum, one) => added(sum, one), ZERO);
}

export function useUsage(asked: UsageQuery | null) {
  return useQuery<Usage, ApiError>({
    queryKey: ["/v1/organization/usage/completions", "page", asked],
    queryFn: ({ signal }) => load(asked!, signal),
    enabled: asked !== null,
    staleTime: 30_000,
    refetchInterval: 60_000,
    placeholderData: (before) => before,
  });
}

async function load(asked: UsageQuery, signal: AbortSignal): Promise<Usage> {
  const at = edges(asked.start, asked.end, asked.unit, asked.zone);
  const parts = partsOf(at, asked.unit, asked.measure === "owed");
  if (parts === null)
    throw new ApiError(
      400,
      null,
      "unit",
      `The time range has ${at.length - 1 > BUCKETS_MAX ? `more than ${BUCKETS_MAX}` : at.length - 1} buckets, which is too many for this clock: choose a shorter time range, or longer buckets.`,
    );
  const whole: Part = { start: asked.start, end: asked.end, width: "all", limit: 1 };
  const ranked = await rowsOf(asked, whole, true, null, signal);
  const currencies = byRequests(ranked);
  const currency = asked.currency || (currencies[0] ?? "USD");
  const totals = new Map<string | null, Cell>();
  for (const row of ranked) totals.set(row.id, added(totals.get(row.id) ?? ZERO, inCurrency(row, currency)));
  const size = (id: string | null) => measured(totals.get(id)!, asked.measure);
  const ids = [...totals.keys()].sort((a, b) =>
    size(b) > size(a) ? 1 : size(b) < size(a) ? -1 : String(a).localeCompare(String(b)),
  );
  const shown = ids.length <= asked.top + 1 ? ids : ids.slice(0, asked.top);
  const fewer = shown.length < ids.length;
  const cellsOf = (rows: Row[]) => {
    const cells: Cell[] = at.slice(1).map(() => ZERO);
    for (const row of rows) {
      const index = bucketOf(at, row.at);
      cells[index] = added(cells[index]!, inCurrency(row, currency));
    }
    return cells;
  };
  const found =
    ids.length === 0 ? [] : await pooled(parts, (part) => rowsOf(asked, part, true, fewer ? shown : null, signal));
  const rowsBy = new Map<string | null, Row[]>(shown.map((id) => [id, []]));
  for (const row of found) {
    if (!rowsBy.has(row.id)) rowsBy.set(row.id, []); // new since the ranking
    rowsBy.get(row.id)!.push(row);
  }
  const series = [...rowsBy].map(([id, rows]) => ({ id, cells: cellsOf(rows) }));
  let others: Usage["others"] = null;
  if (fewer) {
    // The total is queried after the series: usage recorded in between counts under "others".
    const all = cellsOf(await pooled(parts, (part) => rowsOf(asked, part, false, null, signal)));
    const rest = all.map((cell, index) => series.reduce((left, one) => added(left, one.cells[index]!, -1n), cell));
    others = { number: ids.length - shown.length, cells: rest };
  }
  return { by: asked.by, at: at.slice(0, -1), series, others, currency, currencies };
}

/** All pages of one query. */
async function rowsOf(
  asked: UsageQuery,
  part: Part,
  grouped: boolean,
  ids: readonly (string | null)[] | null,
  signal: AbortSignal,
): Promise<Row[]> {
  const { group, filter } = GROUPS[asked.by];
  const query: Record<string, unknown> = {
    start_time: part.start,
    end_time: part.end,
    bucket_width: part.width,
    limit: part.limit,
  };
  if (grouped) query.group_by = [group];
  for (const [by, value] of Object.entries(asked.filters))
    if (value) query[GROUPS[by as By].filter] = by === "source" ? isLine(value) : [value === NONE ? "" : value];
  if (ids !== null) query[filter] = ids.map((id) => id ?? "");
  const path = asked.measure === "owed" ? "/v1/organization/costs" : "/v1/organization/usage/completions";
  const rows: Row[] = [];
  for (let page: string | null = null; ;) {
    const answer: AnswerOf<typeof path> = await api.get(path, { query: { ...query, page } as never, signal });
    for (const bucket of answer.data) {
      for (const one of bucket.results) {
        const value = grouped ? (one[group] ?? null) : null;
        const id = typeof value === "boolean" ? sourceOf(value) : value;
        rows.push({ ...("amount" in one ? costCell(one) : usageCell(one)), id, at: bucket.start_time });
      }
    }
    if (answer.next_page === null) return rows;
    page = answer.next_page ?? null;
  }
}

function sourceOf(line: boolean): string {
  return line ? "batch_line" : "request";
}

function isLine(source: string): boolean {
  return source === sourceOf(true);
}

function usageCell(row: UsageRow) {
  const [input, cached] = [exact(row.input_tokens), exact(row.input_cached_tokens)];
  const embedding = exact(row.embedding_tokens); // of the input tokens
  return {
    requests: exact(row.num_model_requests),
    input: input - cached - embedding,
    cached,
    output: exact(row.output_tokens),
    embedding,
    picos: exact(row.cost_picos),
    currency: row.currency,
  };
}

function costCell(row: CostRow) {
  return { ...ZERO, picos: exact(row.amount.picos), currency: row.amount.currency.toUpperCase() };
}

function inCurrency(row: Row, currency: string): Cell {
  return row.currency === currency ? row : { ...row, picos: 0n };
}

function byRequests(rows: readonly Row[]): string[] {
  const sums = new Map<string, bigint>();
  for (const row of rows) sums.set(row.currency, (sums.get(row.currency) ?? 0n) + row.requests);
  return [...sums]
    .sort(([a, x], [b, y]) => (y > x ? 1 : y < x ? -1 : a.localeCompare(b)))
    .map(([currency]) => currency);
}

function bucketOf(at: readonly number[], moment: number): number {
  let [low, high] = [0, at.length - 2];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (at[middle]! <= moment) low = middle;
    else high = middle - 1;
  }
  return low;
}

async function pooled(parts: readonly Part[], ask: (part: Part) => Promise<Row[]>): Promise<Row[]> {
  const found: Row[][] = [];
  let next = 0;
  const work = async () => {
    for (let index = next++; index < parts.length; index = next++) found[index] = await ask(parts[index]!);
  };
  await Promise.all(Array.from({ length: Math.min(AT_ONCE, parts.length) }, work));
  return found.flat();
}
