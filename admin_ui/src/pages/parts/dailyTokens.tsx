// The tokens of a key or a tenant per day, as a chart.
import { useMemo } from "react";
import { useGet } from "../../api";
import { Chart, Problem, Skeleton, brief, count } from "../../kit";

const DAYS = 30;
const DAY_S = 86_400;

/** `query`: the filter of the usage, as in GET /v1/organization/usage/completions. */
export function DailyTokens({ query }: { query: { api_key_ids?: string[]; tenants?: string[] } }) {
  const start = useMemo(() => (Math.floor(Date.now() / 1000 / DAY_S) - DAYS + 1) * DAY_S, []);
  const found = useGet("/v1/organization/usage/completions", {
    query: { start_time: start, bucket_width: "1d", limit: DAYS, ...query },
  });
  const drawn = useMemo(() => {
    const buckets = found.data?.data ?? [];
    const of = (pick: (row: (typeof buckets)[number]["results"][number]) => number) =>
      buckets.map((bucket) => bucket.results.reduce((all, row) => all + pick(row), 0));
    return {
      at: buckets.map((bucket) => bucket.start_time),
      series: [
        { name: "Prompt", values: of((row) => row.input_tokens - row.input_cached_tokens) },
        { name: "Cached prompt", values: of((row) => row.input_cached_tokens) },
        { name: "Completion", values: of((row) => row.output_tokens) },
      ],
    };
  }, [found.data]);
  if (found.error !== null) return <Problem error={found.error} again={() => void found.refetch()} />;
  if (found.data === undefined) return <Skeleton lines={6} />;
  return (
    <Chart
      title="Tokens per day"
      kind="bars"
      at={drawn.at}
      series={drawn.series}
      detail="day"
      say={count}
      brief={brief}
    />
  );
}
