// A list of the API as a table: search, order and filters in the address, keyset pages, rows as links.
import { Fragment, type KeyboardEvent, type ReactNode, useEffect, useRef, useState } from "react";
import type { List } from "../api/query";
import { useDebounced } from "./combobox";
import { type Cell, saveCsvOf } from "./csv";
import { toast } from "./dialog";
import { Options, type Option } from "./form";
import { Link, type View, useLeaveGuard } from "./links";
import { count } from "./numbers";
import { EmptyState, Problem } from "./parts";

export interface Column<Row> {
  id: string;
  header: string;
  cell: (row: Row) => ReactNode;
  /** The API's sort key of this column, if it has one. */
  sort?: string;
  /** Aligned to the end, for numbers. */
  end?: boolean;
  /** Left out on a phone. */
  wide?: boolean;
  /** Left out below 1400 px: the least important column of a wide table. */
  roomy?: boolean;
  /** The value in the CSV; a column without `csv` is omitted there. */
  csv?: (row: Row) => Cell;
  /** Its header in the CSV, if it differs: with a unit, for example. */
  csvHeader?: string;
  /** Only in the CSV. */
  hidden?: boolean;
}

interface Props<Row> {
  /** The table's name for screen readers, and the name of the CSV. */
  label: string;
  list: List<Row>;
  columns: readonly Column<Row>[];
  id: (row: Row) => string;
  /** The page of a row; the first cell is the link. */
  to?: (row: Row) => string;
  /** Details below a row. The open rows are in the address if `view` has `open`. */
  detail?: (row: Row) => ReactNode;
  /** The page's `useView`, with `search` and `sort` where the API has them. */
  view?: View<Record<string, string>>;
  /** The fields that the search matches, such as "Name or id". Without it there is no search box. */
  search?: string;
  /** More filters, beside the search. */
  filters?: ReactNode;
  /** Shown when the list is empty without any filter. */
  empty: ReactNode;
  csv?: boolean;
  /** Rows can be chosen for an action on all of them. */
  selection?: Selection<Row>;
}

/** The chosen rows of a table, by id. */
export interface Selection<Row> {
  rows: ReadonlyMap<string, Row>;
  set: (rows: ReadonlyMap<string, Row>) => void;
  /** The row's name in the label of its checkbox. */
  name: (row: Row) => string;
  /** False: the row cannot be chosen. */
  may?: (row: Row) => boolean;
  /** The actions, shown above the table while rows are chosen. */
  actions: ReactNode;
}

export function DataTable<Row extends object>({
  label,
  list,
  columns: all,
  id,
  to,
  detail,
  view,
  search,
  filters,
  empty,
  csv,
  selection,
}: Props<Row>) {
  const columns = all.filter((column) => !column.hidden);
  const open = view?.values.open?.split(",").filter(Boolean) ?? [];
  const [opened, setOpened] = useState<string[]>([]);
  const isOpen = (row: string) => (view?.values.open === undefined ? opened : open).includes(row);
  const toggle = (row: string) => {
    const next = (now: string[]) => (now.includes(row) ? now.filter((one) => one !== row) : [...now, row]);
    if (view?.values.open === undefined) setOpened(next);
    else view.set({ open: next(open).join(",") });
  };
  const span = columns.length + (detail === undefined ? 0 : 1) + (selection === undefined ? 0 : 1);
  const narrowed = view?.narrowed ?? false;
  return (
    <div className="table-block">
      {(search !== undefined || filters !== undefined || csv) && (
        <div className="table-bar" role="search" aria-label={`Filter ${label}`}>
          {search !== undefined && view !== undefined && (
            <SearchBox
              label={`${label}: ${search}`}
              hint={search}
              value={view.values.search ?? ""}
              onChange={(text) => view.set({ search: text })}
            />
          )}
          {filters}
          {narrowed && (
            <button type="button" className="button button-quiet" onClick={view?.clear}>
              Clear
            </button>
          )}
          <span className="table-count num" role="status">
            {list.loading || (list.error !== null && list.rows.length === 0)
              ? ""
              : `${list.rows.length}${list.hasMore ? "+" : ""} ${list.rows.length === 1 && !list.hasMore ? "row" : "rows"}`}
          </span>
          {csv && <SaveList label={label} list={list} columns={all} />}
        </div>
      )}
      {selection !== undefined && selection.rows.size > 0 && (
        <div className="table-chosen" role="group" aria-label={`Actions on chosen rows of ${label}`}>
          <b className="num" role="status">
            {selection.rows.size} chosen
          </b>
          {selection.actions}
          <button type="button" className="button button-quiet" onClick={() => selection.set(new Map())}>
            Clear the choice
          </button>
        </div>
      )}
      {list.error !== null && list.rows.length === 0 ? (
        <Problem error={list.error} again={list.again} />
      ) : !list.loading && list.rows.length === 0 ? (
        narrowed ? (
          <EmptyState title="Nothing matches these filters">
            <button type="button" className="button" onClick={view?.clear}>
              Clear the filters
            </button>
          </EmptyState>
        ) : (
          empty
        )
      ) : (
        <div
          className={list.busy ? "table-scroll table-busy" : "table-scroll"}
          aria-busy={list.loading || list.busy}
          {...(to === undefined && detail === undefined
            ? { tabIndex: 0, role: "group", "aria-label": `${label}, the table` }
            : {})}
        >
          <table className="table">
            <caption className="sr-only">{label}</caption>
            <thead>
              <tr>
                {selection !== undefined && <ChooseAll label={label} rows={list.rows} id={id} of={selection} />}
                {detail !== undefined && (
                  <th scope="col" className="fold">
                    <span className="sr-only">Details</span>
                  </th>
                )}
                {columns.map((column) => (
                  <Head key={column.id} column={column} view={view} />
                ))}
              </tr>
            </thead>
            <tbody onKeyDown={moveByArrows}>
              {list.loading
                ? Array.from({ length: 6 }, (_, row) => (
                    <tr key={row} className="skeleton">
                      {Array.from({ length: span }, (_, cell) => (
                        <td key={cell}>
                          <i className={`w${(row + cell) % 4}`} />
                        </td>
                      ))}
                    </tr>
                  ))
                : list.rows.map((row) => {
                    const key = id(row);
                    return (
                      <Fragment key={key}>
                        <tr className={to === undefined ? undefined : "row-link"}>
                          {selection !== undefined && <Choose row={row} id={key} of={selection} />}
                          {detail !== undefined && (
                            <td className="fold">
                              <button
                                type="button"
                                className="fold-button"
                                aria-expanded={isOpen(key)}
                                aria-label={`Details of ${key}`}
                                onClick={() => toggle(key)}
                              >
                                ›
                              </button>
                            </td>
                          )}
                          {columns.map((column, index) => (
                            <td key={column.id} data-label={column.header} className={classOf(column)}>
                              {index === 0 && to !== undefined ? (
                                <Link to={to(row)} className="row-to">
                                  {column.cell(row)}
                                </Link>
                              ) : (
                                column.cell(row)
                              )}
                            </td>
                          ))}
                        </tr>
                        {detail !== undefined && isOpen(key) && (
                          <tr className="row-detail">
                            <td colSpan={span}>{detail(row)}</td>
                          </tr>
                        )}
                      </Fragment>
                    );
                  })}
            </tbody>
          </table>
        </div>
      )}
      {list.error !== null && list.rows.length > 0 && <Problem error={list.error} again={list.again} />}
      {list.hasMore && list.error === null && (
        <div className="table-more">
          <button type="button" className="button" onClick={list.more} disabled={list.busy}>
            {list.busy ? "Loading…" : "Load more"}
          </button>
        </div>
      )}
    </div>
  );
}

function Choose<Row>({ row, id, of }: { row: Row; id: string; of: Selection<Row> }) {
  const change = () => {
    const next = new Map(of.rows);
    if (!next.delete(id)) next.set(id, row);
    of.set(next);
  };
  return (
    <td className="choose">
      {(of.may?.(row) ?? true) && (
        <input type="checkbox" checked={of.rows.has(id)} onChange={change} aria-label={`Choose ${of.name(row)}`} />
      )}
    </td>
  );
}

/** Chooses the loaded rows, or none of them. */
function ChooseAll<Row>({
  label,
  rows,
  id,
  of,
}: {
  label: string;
  rows: readonly Row[];
  id: (row: Row) => string;
  of: Selection<Row>;
}) {
  const all = rows.filter((row) => of.may?.(row) ?? true);
  const every = all.length > 0 && all.every((row) => of.rows.has(id(row)));
  return (
    <th scope="col" className="choose">
      <input
        type="checkbox"
        checked={every}
        disabled={all.length === 0}
        onChange={() => of.set(every ? new Map() : new Map(all.map((row) => [id(row), row])))}
        aria-label={`Choose all loaded rows of ${label}`}
      />
    </th>
  );
}

/** Saves the whole list as a file, including rows that are not loaded. */
function SaveList<Row>({ label, list, columns }: { label: string; list: List<Row>; columns: readonly Column<Row>[] }) {
  const [read, setRead] = useState<number | null>(null); // rows read so far; null: no export is running
  const stop = useRef<AbortController | null>(null);
  useEffect(() => () => stop.current?.abort(), []);
  useLeaveGuard(read !== null, () => toast("A CSV export is running. Stop it first.", true));
  const save = async () => {
    const shown = columns.filter((column) => column.csv !== undefined);
    const { signal } = (stop.current = new AbortController());
    setRead(0);
    try {
      const rows = await saveCsvOf(
        label.toLowerCase().replaceAll(/\W+/g, "-"),
        shown.map((column) => column.csvHeader ?? column.header),
        list.all(signal),
        (row) => shown.map((column) => column.csv?.(row)),
        setRead,
      );
      toast(`CSV saved: ${count(rows)} ${rows === 1 ? "row" : "rows"}, the whole list.`);
    } catch (thrown) {
      toast(
        signal.aborted
          ? "CSV export stopped; nothing was saved."
          : `The CSV could not be saved: ${thrown instanceof Error ? thrown.message : String(thrown)}`,
        !signal.aborted,
      );
    } finally {
      setRead(null);
    }
  };
  if (read === null)
    return (
      <button
        type="button"
        className="button"
        onClick={() => void save()}
        disabled={list.rows.length === 0}
        title="Saves every row that matches the filters, including rows that are not loaded yet"
      >
        CSV
      </button>
    );
  return (
    <span className="row csv-progress">
      <span className="num" role="status">
        {count(read)} rows read…
      </span>
      <button type="button" className="button" onClick={() => stop.current?.abort()}>
        Stop the CSV export
      </button>
    </span>
  );
}

function classOf<Row>(column: Column<Row>): string | undefined {
  return (
    [column.end && "end", column.wide && "wide-only", column.roomy && "roomy-only"].filter(Boolean).join(" ") ||
    undefined
  );
}

function Head<Row>({ column, view }: { column: Column<Row>; view: Props<Row>["view"] }) {
  const { sort } = column;
  if (sort === undefined || view?.values.sort === undefined)
    return (
      <th scope="col" className={classOf(column)}>
        {column.header}
      </th>
    );
  const now = view.values.sort === sort ? "ascending" : view.values.sort === `-${sort}` ? "descending" : "none";
  return (
    <th scope="col" className={classOf(column)} aria-sort={now}>
      <button
        type="button"
        className="sorter"
        onClick={() => view.set({ sort: now === "ascending" ? `-${sort}` : sort })}
      >
        {column.header}
        <span className="sort-mark" aria-hidden="true">
          {now === "ascending" ? "↑" : now === "descending" ? "↓" : "↕"}
        </span>
      </button>
    </th>
  );
}

/** Arrow keys move between rows. */
function moveByArrows(event: KeyboardEvent<HTMLTableSectionElement>): void {
  if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
  const kind = (event.target as HTMLElement).closest(".row-to, .fold-button")?.classList.contains("row-to")
    ? ".row-to"
    : ".fold-button";
  const all = [...event.currentTarget.querySelectorAll<HTMLElement>(kind)];
  const at = all.indexOf(event.target as HTMLElement);
  const next = all[at + (event.key === "ArrowDown" ? 1 : -1)];
  if (at < 0 || next === undefined) return;
  event.preventDefault();
  next.focus();
}

/** The search of a list; `/` focuses it. It is sent once typing pauses. */
export function SearchBox({
  label,
  hint,
  value,
  onChange,
}: {
  label: string;
  hint: string;
  value: string;
  onChange: (text: string) => void;
}) {
  const [text, setText] = useState(value);
  const late = useDebounced(text, 250);
  const told = useRef(value);
  useEffect(() => {
    if (late === told.current) return;
    told.current = late;
    onChange(late);
  }, [late, onChange]);
  useEffect(() => {
    if (value === told.current) return; // the address has our own change
    told.current = value;
    setText(value);
  }, [value]);
  return (
    <input
      type="search"
      className="search"
      aria-label={label}
      placeholder={`${hint}…  /`}
      value={text}
      onChange={(event) => setText(event.target.value)}
      spellCheck={false}
      data-search
    />
  );
}

/** A filter with a few options: `<SelectFilter label="Status" view={view} name="status" options={[["", "Any"],
 * "active"]} />`. */
export function SelectFilter<V extends Record<string, string>>({
  label,
  view,
  name,
  options,
}: {
  label: string;
  view: View<V>;
  name: keyof V & string;
  options: readonly Option[];
}) {
  return (
    <label className="filter">
      <span>{label}</span>
      <select value={view.values[name]} onChange={(event) => view.set({ [name]: event.target.value } as Partial<V>)}>
        <Options options={options} />
      </select>
    </label>
  );
}

/** A lookup as a filter, with its label above it. */
export function LookupFilter({ label, children }: { label: string; children: ReactNode }) {
  return (
    <div className="filter">
      <span aria-hidden="true">{label}</span>
      {children}
    </div>
  );
}

/** A filter by an exact text. */
export function TextFilter<V extends Record<string, string>>({
  label,
  view,
  name,
  type = "text",
}: {
  label: string;
  view: View<V>;
  name: keyof V & string;
  type?: "text" | "date" | "number";
}) {
  const value = view.values[name] ?? "";
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  const put = () => text !== value && view.set({ [name]: text } as Partial<V>);
  return (
    <label className="filter">
      <span>{label}</span>
      <input
        type={type}
        {...(type === "number" ? { min: 0, step: "any" } : {})}
        value={text}
        spellCheck={false}
        onChange={(event) =>
          type === "date" ? view.set({ [name]: event.target.value } as Partial<V>) : setText(event.target.value)
        }
        onBlur={put}
        onKeyDown={(event) => event.key === "Enter" && put()}
      />
    </label>
  );
}

/** An array as a list for DataTable: rows of a report, for example. */
export function wholeList<Row>(rows: readonly Row[]): List<Row> {
  const all = async function* () {
    yield rows;
  };
  return {
    rows,
    loading: false,
    busy: false,
    error: null,
    hasMore: false,
    more: () => undefined,
    again: () => undefined,
    all,
  };
}
