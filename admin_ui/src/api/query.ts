// How pages ask: one resource, a keyset list, a write that makes others stale. Keys begin with the API's path, so that
// a write says what it changes by path alone.
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

/** A refusal is an answer; only silence and a server's fault are worth asking once more. */
function worthAsking(error: unknown): boolean {
  return !(error instanceof ApiError) || error.status === 0 || error.status >= 500;
}

export const queries = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 10_000,
      refetchOnWindowFocus: true,
      retry: (count, error) => count < 1 && worthAsking(error),
    },
  },
});

/** What one resource is asked with beside its path and query. */
interface Asking {
  /** False: not asked yet. */
  enabled?: boolean;
  /** Asked again so often, while the page is looked at. */
  everyMs?: number;
}

/** One resource: `const tenant = useGet("/v1/admin/tenants/{tenant_id}", { path: { tenant_id } })`. */
export function useGet<P extends PathsOf<"get">>(path: P, call?: Omit<Call<P, "get">, "signal">, asking: Asking = {}) {
  return useQuery<AnswerOf<P>, ApiError>({
    queryKey: [path, call?.path ?? null, call?.query ?? null],
    queryFn: ({ signal }) => ask<P>(path, { ...call, signal }),
    enabled: asking.enabled ?? true,
    ...(asking.everyMs === undefined ? {} : { refetchInterval: asking.everyMs }),
    placeholderData: keepPreviousData,
  });
}

/** The paths whose answer is a page of a list, and what a row of it is. */
export type RowOf<P extends PathsOf<"get">> = AnswerOf<P> extends { data: (infer R)[] } ? R : never;

/** What a list is narrowed by. Values of an address are texts, and go as they are; blank ones are left out. */
type Narrowed<P extends PathsOf<"get">> = { [N in keyof QueryOf<P>]?: QueryOf<P>[N] | string | undefined } & {
  search?: string;
  sort?: string;
};

export interface List<Row> {
  rows: readonly Row[];
  /** Nothing is there yet. */
  loading: boolean;
  /** What is there was asked for with other filters, or more is on its way. */
  busy: boolean;
  error: ApiError | null;
  hasMore: boolean;
  more: () => void;
  again: () => void;
  /** The whole list as it is narrowed and sorted now, a page of rows at a time; what is shown does not change. Throws an
   * ApiError, and an AbortError once `signal` says so. */
  all: (signal: AbortSignal) => AsyncIterable<readonly Row[]>;
}

/** Rows of a page where a whole list is read; the API gives no more. */
const ALL_LIMIT = 500;
/** An order that changes while a list is read would lose rows of it. */
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
      (await ask<P>(path, { path: call.path, query: { ...query, page: pageParam }, signal })) as Answered<RowOf<P>>,
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
        const page = (await askTwice<P>(path, asked)) as Answered<RowOf<P>>;
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

function ask<P extends PathsOf<"get">>(path: P, call: object): Promise<AnswerOf<P>> {
  // The call's shape was checked where the hook was called; through the generic it cannot be seen again.
  return (api.get as (path: string, call: object) => Promise<AnswerOf<P>>)(path, call);
}

/** A page among hundreds is asked for once more before all of them are given up. */
async function askTwice<P extends PathsOf<"get">>(path: P, call: { signal: AbortSignal }): Promise<AnswerOf<P>> {
  try {
    return await ask<P>(path, call);
  } catch (error) {
    if (call.signal.aborted || !worthAsking(error)) throw error;
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    call.signal.throwIfAborted();
    return ask<P>(path, call);
  }
}

/** A write. `changes`: beginnings of paths whose answers are stale afterwards; they are asked again at once where they are
 * shown, with `refetch` "none" only when they are shown next: what was removed is not there to be asked. `mutateAsync`
 * throws an ApiError. */
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

/** The address of a file to download, for an `<a href download>`. */
export const fileAddress = address;
