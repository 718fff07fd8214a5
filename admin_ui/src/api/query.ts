// Hooks for reading one resource or a keyset list, and for writes that invalidate them. Query keys begin with the API's
// path, so that a write names what it invalidates by path.
import {
  QueryClient,
  keepPreviousData,
  useInfiniteQuery,
  useMutation,
  useQuery,
  useQueryClient,
} from "@tanstack/react-query";
import { useMemo } from "react";
import { type AnswerOf, type Call, type PathsOf, type PlaceOf, type QueryOf, address, api } from "./client";
import { ApiError, apiError } from "./errors";

const AGAIN_MS = 1_000;

/** Only a missing response and a server error are retried; a 4xx is final. */
function isRetryable(error: unknown): boolean {
  return !(error instanceof ApiError) || error.status === 0 || error.status >= 500;
}

export const queries = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 10_000,
      refetchOnWindowFocus: true,
      retry: (count, error) => count < 1 && isRetryable(error),
    },
  },
});

/** How a resource is requested, besides its path and query. */
interface Asking {
  /** False: do not request it yet. */
  enabled?: boolean;
  /** Refresh interval in ms, while the page is visible. */
  everyMs?: number;
}

/** One resource: `const tenant = useGet("/v1/admin/tenants/{tenant_id}", { path: { tenant_id } })`. */
export function useGet<P extends PathsOf<"get">>(path: P, call?: Omit<Call<P, "get">, "signal">, asking: Asking = {}) {
  return useQuery<AnswerOf<P>, ApiError>({
    queryKey: [path, call?.path ?? null, call?.query ?? null],
    queryFn: ({ signal }) => fetchPath<P>(path, { ...call, signal }),
    enabled: asking.enabled ?? true,
    ...(asking.everyMs === undefined ? {} : { refetchInterval: asking.everyMs }),
    placeholderData: keepPreviousData,
  });
}

/** The paths whose answer is a page of a list, and what a row of it is. */
export type RowOf<P extends PathsOf<"get">> = AnswerOf<P> extends { data: (infer R)[] } ? R : never;

/** The filters of a list. Values from the address are strings and are sent unchanged; blank ones are omitted. */
type Narrowed<P extends PathsOf<"get">> = { [N in keyof QueryOf<P>]?: QueryOf<P>[N] | string | undefined } & {
  search?: string;
  sort?: string;
};

export interface List<Row> {
  rows: readonly Row[];
  /** Nothing is loaded yet. */
  loading: boolean;
  /** The rows shown belong to earlier filters, or the next page is loading. */
  busy: boolean;
  error: ApiError | null;
  hasMore: boolean;
  more: () => void;
  again: () => void;
  /** The whole list with the current filters and order, one page of rows at a time; the rows shown do not change.
   * Throws an ApiError, and an AbortError when `signal` aborts. */
  all: (signal: AbortSignal) => AsyncIterable<readonly Row[]>;
}

/** Rows per page when a whole list is read: the API's maximum. */
const ALL_LIMIT = 500;
/** Sorting by a value that changes during the read would lose rows. */
const MOVING_SORT = /^-?last_used_at$/;
const FIRM_SORT = "created_at";

/** A keyset list: the first page, and `more()` for the next. */
export function useList<P extends PathsOf<"get">>(
  path: P,
  call: { path?: PlaceOf<P>; query?: Narrowed<P> } = {},
  asking: Asking & { limit?: number } = {},
): List<RowOf<P>> {
  const query = { limit: asking.limit ?? 50, ...call.query };
  const found = useInfiniteQuery<
    Answered<RowOf<P>>,
    ApiError,
    { pages: Answered<RowOf<P>>[] },
    unknown[],
    string | null
  >({
    queryKey: [path, call.path ?? null, query, "list"],
    queryFn: async ({ pageParam, signal }) =>
      (await fetchPath<P>(path, { path: call.path, query: { ...query, page: pageParam }, signal })) as Answered<
        RowOf<P>
      >,
    initialPageParam: null,
    getNextPageParam: (last) => last.next_page ?? null,
    enabled: asking.enabled ?? true,
    ...(asking.everyMs === undefined ? {} : { refetchInterval: asking.everyMs }),
    placeholderData: keepPreviousData,
  });
  const { data } = found;
  const rows = useMemo(() => data?.pages.flatMap((page) => page.data) ?? [], [data]);
  return {
    rows,
    loading: found.isPending,
    busy: found.isPlaceholderData || found.isFetchingNextPage,
    error: found.error === null ? null : apiError(found.error),
    hasMore: found.hasNextPage,
    more: () => void found.fetchNextPage(),
    again: () => void found.refetch(),
    all: async function* (signal) {
      const firm = MOVING_SORT.test(call.query?.sort ?? "") ? { sort: FIRM_SORT } : {};
      let next: string | null = null;
      do {
        const asked = { path: call.path, query: { ...call.query, ...firm, limit: ALL_LIMIT, page: next }, signal };
        const page = (await fetchWithRetry<P>(path, asked)) as Answered<RowOf<P>>;
        yield page.data;
        next = page.next_page ?? null;
      } while (next !== null);
    },
  };
}

interface Answered<Row> {
  data: Row[];
  next_page?: string | null;
}

function fetchPath<P extends PathsOf<"get">>(path: P, call: object): Promise<AnswerOf<P>> {
  // The parameters were type-checked at the hook's call; TypeScript cannot check them again through the generic.
  return (api.get as (path: string, call: object) => Promise<AnswerOf<P>>)(path, call);
}

/** Retries one failed page before the read of the whole list fails. */
async function fetchWithRetry<P extends PathsOf<"get">>(path: P, call: { signal: AbortSignal }): Promise<AnswerOf<P>> {
  try {
    return await fetchPath<P>(path, call);
  } catch (error) {
    if (call.signal.aborted || !isRetryable(error)) throw error;
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    call.signal.throwIfAborted();
    return fetchPath<P>(path, call);
  }
}

/** A write. `changes`: path prefixes that it invalidates. Visible queries are refetched immediately; with `refetch`
 * "none" only when they are shown next (after a removal, whose resource would give 404). `mutateAsync` throws an
 * ApiError. */
export function useWrite<A, V = void>(
  write: (value: V) => Promise<A>,
  changes: readonly string[],
  refetch: "active" | "none" = "active",
) {
  const client = useQueryClient();
  return useMutation<A, ApiError, V>({
    mutationFn: write,
    onSuccess: () =>
      client.invalidateQueries({
        refetchType: refetch,
        predicate: ({ queryKey }) => changes.some((path) => String(queryKey[0]).startsWith(path)),
      }),
  });
}

/** The URL of a file to download, for an `<a href download>`. */
export const fileAddress = address;
