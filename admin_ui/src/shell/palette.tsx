// The command palette (⌘K, Ctrl K): pages, actions and settings by typing, and everything that the gateway's search finds.
import { type KeyboardEvent, useEffect, useRef, useState } from "react";
import { type AnswerOf } from "../api/client";
import { useGet } from "../api/query";
import { signOut, useMay, useSession } from "../api/session";
import { useDebounced } from "../kit/combobox";
import { Dialog } from "../kit/dialog";
import { place, useGo } from "../kit/links";
import { setSetting } from "../kit/settings";
import { PAGES, type Page } from "../routes";

type Hit = AnswerOf<"/v1/admin/search">["data"][number];

interface Command {
  id: string;
  name: string;
  note: string;
  run: () => void;
}

const SEARCH_CHARS_MIN = 2;
const COMMANDS_MAX = 8; // beside hits, so that these are in view

/** Tabs and dialogs of pages: name, note, path, query, permission; `operator`: not for a tenant's admin. */
const PLACES: readonly {
  name: string;
  note: string;
  to: string;
  query?: Record<string, string>;
  needs: string;
  operator?: true;
}[] = [
  { name: "New customer", note: "Action", to: "/new-customer", needs: "engine:write" },
  { name: "New tenant", note: "Action", to: "/tenants", query: { new: "1" }, needs: "people:write", operator: true },
  { name: "New key", note: "Action", to: "/keys", query: { new: "1" }, needs: "keys:write" },
  { name: "New budget", note: "Action", to: "/budgets", query: { new: "1" }, needs: "money:write" },
  { name: "Upload an adapter", note: "Action", to: "/adapters/upload", needs: "adapters:write" },
  { name: "Rate limits", note: "Budgets and limits", to: "/budgets", query: { tab: "limits" }, needs: "limits:read" },
  { name: "Alerts", note: "Budgets and limits", to: "/budgets", query: { tab: "alerts" }, needs: "alerts:read" },
  { name: "Webhooks", note: "Budgets and limits", to: "/budgets", query: { tab: "webhooks" }, needs: "alerts:read" },
  { name: "Keys that expire soon", note: "Keys", to: "/keys", query: { status: "expiring" }, needs: "keys:read" },
  { name: "Running requests", note: "Requests", to: "/requests", query: { status: "held" }, needs: "requests:read" },
];

/** The pages that the role may open. */
export function usePages(): Page[] {
  const may = useMay();
  return PAGES.filter((page) => page.group !== undefined && (page.needs === undefined || may(page.needs)));
}

function addressOf(hit: Hit): readonly [string, Record<string, string>?] {
  switch (hit.kind) {
    case "tenant":
      return [place("/tenants", hit.id)];
    case "project":
      return [place("/tenants", hit.tenant_id ?? ""), { tab: "projects" }];
    case "key":
      return [place("/keys", hit.id)];
    case "request":
      return [place("/requests", hit.id)];
    case "invoice":
      return [place("/billing/invoices", hit.id)];
    case "adapter":
      return [place("/adapters", hit.id)];
    case "model":
      return [place("/models", hit.id)];
    case "alias":
      return ["/aliases"];
  }
}

function useCommands(): Command[] {
  const pages = usePages();
  const may = useMay();
  const bound = useSession().tenant !== null;
  const go = useGo();
  return [
    ...pages.map((page) => ({
      id: `page ${page.path}`,
      name: page.title,
      note: page.group ?? "",
      run: () => go(page.path),
    })),
    ...PLACES.filter((one) => may(one.needs) && !(one.operator && bound)).map((one) => ({
      id: `place ${one.name}`,
      name: one.name,
      note: one.note,
      run: () => go(one.to, one.query),
    })),
    ...(["dark", "light", "system"] as const).map((theme) => ({
      id: `theme ${theme}`,
      name: `Theme: ${theme}`,
      note: "Appearance",
      run: () => setSetting("theme", theme),
    })),
    { id: "utc", name: "Times in UTC", note: "Appearance", run: () => setSetting("zone", "utc") },
    { id: "local", name: "Times in local time", note: "Appearance", run: () => setSetting("zone", "local") },
    { id: "out", name: "Sign out", note: "Session", run: () => void signOut() },
  ];
}

export function Palette({ open, onClose }: { open: boolean; onClose: () => void }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const list = useRef<HTMLUListElement>(null);
  const go = useGo();
  const all = useCommands();
  const typed = text.trim();
  const late = useDebounced(typed, 150);
  const asks = open && late.length >= SEARCH_CHARS_MIN;
  const search = useGet("/v1/admin/search", { query: { q: late } }, { enabled: asks });
  const hits = asks && late === typed && !search.isPlaceholderData ? (search.data?.data ?? []) : [];
  const words = typed.toLowerCase().split(/\s+/);
  const commands = all.filter((one) => {
    const said = `${one.name} ${one.note}`.toLowerCase();
    return words.every((word) => said.includes(word));
  });
  const found: Command[] = [
    ...(typed.length >= SEARCH_CHARS_MIN ? commands.slice(0, COMMANDS_MAX) : commands),
    ...hits.map((hit) => ({
      id: `${hit.kind} ${hit.id}`,
      name: hit.name,
      note: [hit.kind, hit.note].filter(Boolean).join(", "),
      run: () => go(...addressOf(hit)),
    })),
  ];
  const searching = typed.length >= SEARCH_CHARS_MIN && (late !== typed || search.isFetching);
  useEffect(() => {
    list.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }, [at]);
  const close = () => {
    setText("");
    setAt(0);
    onClose();
  };
  const run = (command: Command | undefined) => {
    if (command === undefined) return;
    close();
    command.run();
  };
  const key = (event: KeyboardEvent) => {
    if (event.key === "Enter") run(found[at]);
    else if (event.key === "ArrowDown") setAt(Math.min(found.length - 1, at + 1));
    else if (event.key === "ArrowUp") setAt(Math.max(0, at - 1));
    else return;
    event.preventDefault();
  };
  return (
    <Dialog open={open} onClose={close} title="Go to">
      <input
        className="search"
        role="combobox"
        aria-label="Page, action, name or id"
        aria-expanded="true"
        aria-autocomplete="list"
        aria-controls="palette-list"
        aria-activedescendant={found[at] === undefined ? undefined : `palette-${at}`}
        placeholder="A page, an action, a name or an id…"
        value={text}
        maxLength={200}
        autoComplete="off"
        spellCheck={false}
        onChange={(event) => {
          setText(event.target.value);
          setAt(0);
        }}
        onKeyDown={key}
        autoFocus
      />
      <ul id="palette-list" role="listbox" aria-label="Results" className="palette-list" ref={list}>
        {found.map((one, index) => (
          <li key={one.id} id={`palette-${index}`} role="option" aria-selected={index === at} onClick={() => run(one)}>
            <span>{one.name}</span>
            <span className="faint">{one.note}</span>
          </li>
        ))}
        {found.length === 0 && (
          <li role="option" aria-selected={false} aria-disabled="true" className="faint">
            {searching ? "Searching…" : "No match. Requests are found by their full id."}
          </li>
        )}
      </ul>
      <p className="sr-only" role="status">
        {searching ? "Searching" : `${found.length} results`}
      </p>
      {search.error !== null && asks && <p className="field-error">{search.error.message}</p>}
    </Dialog>
  );
}
