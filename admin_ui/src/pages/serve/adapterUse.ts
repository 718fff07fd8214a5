// Location and daily tokens of adapters.
import { useMemo } from "react";
import { useGet, useMay } from "../../api";

export const USE_DAYS = 14;
const DAY_S = 86_400;

export interface Use {
  /** The first second of each day, UTC. */
  at: readonly number[];
  /** Prompt and completion tokens per day, by adapter id. */
  of: ReadonlyMap<string, readonly number[]>;
}

/** The last `days` days of one adapter, or of all. Null until it is loaded, and for roles that may not read it. */
export function useAdapterUse(adapter?: string, days = USE_DAYS): Use | null {
  const may = useMay()("usage:read");
  const start = useMemo(() => (Math.floor(Date.now() / 1000 / DAY_S) - days + 1) * DAY_S, [days]);
  const query = {
    start_time: start,
    bucket_width: "1d" as const,
    limit: days,
    group_by: ["adapter" as const],
    ...(adapter === undefined ? {} : { adapters: [adapter] }),
  };
  const { data } = useGet("/v1/organization/usage/completions", { query }, { enabled: may });
  return useMemo(() => {
    if (data === undefined) return null;
    const of = new Map<string, number[]>();
    data.data.forEach((bucket, day) => {
      for (const row of bucket.results) {
        if (row.adapter == null) continue;
        const values = of.get(row.adapter) ?? Array<number>(data.data.length).fill(0);
        values[day] = (values[day] ?? 0) + row.input_tokens + row.output_tokens;
        of.set(row.adapter, values);
      }
    });
    return { at: data.data.map((bucket) => bucket.start_time), of };
  }, [data]);
}

export interface Places {
  /** By digest; adapters that the engine has not registered are missing. */
  of: ReadonlyMap<string, { where: "device" | "host" | "disk"; bytes: number }>;
  away: string | null;
}

/** Locations of adapters in the engine, refreshed every few seconds; null for roles that may not read it. */
export function usePlaces(): Places | null {
  const may = useMay()("engine:read");
  const { data } = useGet("/v1/admin/models", undefined, { enabled: may, everyMs: 5_000 });
  return useMemo(
    () =>
      data === undefined
        ? null
        : { of: new Map(data.adapters.map((one) => [one.digest, one])), away: data.engine_away },
    [data],
  );
}
