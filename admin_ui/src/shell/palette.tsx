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
  /** The palette remains open. */
  open?: true;
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
  { name: "Add a model", note: "Action", to: "/models", query: { new: "1" }, needs: "models:write" },
  {
    name: "Close a month",
    note: "Action",
    to: "/billing",
    query: { do: "close_month" },
    needs: "billing:write",
    operator: true,
  },
  {
    name: "New credit, charge or correction",
    note: "Action",
    to: "/billing",
    query: { tab: "corrections", new: "1" },
    needs: "billing:write",
  },
  { name: "Drain an engine", note: "Action", to: "/engines", needs: "engine:write" },
  { name: "Limits", note: "Budgets and limits", to: "/budgets", query: { tab: "limits" }, needs: "limits:read" },
  { name: "Alerts", note: "Budgets and limits", to: "/budgets", query: { tab: "alerts" }, needs: "alerts:read" },
  { name: "Webhooks", note: "Budgets and limits", to: "/budgets", query: { tab: "webhooks" }, needs: "alerts:read" },
  { name: "Keys that expire soon", note: "Keys", to: "/keys", query: { status: "expiring" }, needs: "keys:read" },
  { name: "Running requests", note: "Requests", to: "/requests", query: { status: "held" }, needs: "requests:read" },
];

/** Actions on one object, which is chosen after the action. `action`: the dialog of the object's page. */
interface ObjectAction {
  name: string;
  /** The question for the object. */
  prompt: string;
  kind: Hit["kind"];
  action: string;
  needs: string;
}

const OBJECT_ACTIONS: readonly ObjectAction[] = [
  { name: "Rotate a key", prompt: "Which key? Its name or id…", kind: "key", action: "rotate", needs: "keys:write" },
  { name: "Revoke a key", prompt: "Which key? Its name or id…", kind: "key", action: "revoke", needs: "keys:write" },
  {
    name: "Publish a price",
    prompt: "Of which model? Its name…",
    kind: "model",
    action: "price",
    needs: "prices:write",
  },
  {
    name: "Drain and remove a model",
    prompt: "Which model? Its name…",
    kind: "model",
    action: "remove",
    needs: "models:write",
  },
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
    case "batch":
      return [place("/batches", hit.id)];
    case "file":
      return ["/files", { search: hit.id }];
  }
}

function useCommands(choose: (action: ObjectAction) => void): Command[] {
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
    ...OBJECT_ACTIONS.filter((one) => may(one.needs)).map((one) => ({
      id: `action ${one.name}`,
      name: one.name,
      note: "Action",
      open: true as const,
      run: () => choose(one),
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

const HAS_DIGIT = /\d/; // as ids have

function noMatch(action: ObjectAction | null, typed: string): string {
  if (action === null)
    return HAS_DIGIT.test(typed) ? "No match. Requests, batches and files are found by their full id." : "No match.";
  return typed.length < SEARCH_CHARS_MIN ? `Type ${SEARCH_CHARS_MIN} letters of the name or id.` : "No match.";
}

export function Palette({ open, onClose }: { open: boolean; onClose: () => void }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const list = useRef<HTMLUListElement>(null);
  const input = useRef<HTMLInputElement>(null);
  const go = useGo();
  const [action, setAction] = useState<ObjectAction | null>(null);
  const all = useCommands((chosen) => {
    setAction(chosen);
    setText("");
    setAt(0);
    input.current?.focus(); // a click on the action took the focus
  });
  const typed = text.trim();
  const late = useDebounced(typed, 150);
  const asks = open && late.length >= SEARCH_CHARS_MIN;
  const search = useGet("/v1/admin/search", { query: { q: late } }, { enabled: asks });
  const answer = asks && late === typed && !search.isPlaceholderData ? (search.data?.data ?? []) : [];
  const hits = action === null ? answer : answer.filter((hit) => hit.kind === action.kind);
  const words = typed.toLowerCase().split(/\s+/);
  const commands = (action === null ? all : []).filter((one) => {
    const said = `${one.name} ${one.note}`.toLowerCase();
    return words.every((word) => said.includes(word));
  });
  const found: Command[] = [
    ...(typed.length >= SEARCH_CHARS_MIN ? commands.slice(0, COMMANDS_MAX) : commands),
    ...hits.map((hit) => ({
      id: `${hit.kind} ${hit.id}`,
      name: hit.name,
      note: [hit.kind, hit.note].filter(Boolean).join(", "),
      run: () => (action === null ? go(...addressOf(hit)) : go(addressOf(hit)[0], { do: action.action })),
    })),
  ];
  const searching = typed.length >= SEARCH_CHARS_MIN && (late !== typed || search.isFetching);
  useEffect(() => {
    list.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }, [at]);
  const close = () => {
    setAction(null);
    setText("");
    setAt(0);
    onClose();
  };
  const run = (command: Command | undefined) => {
    if (command === undefined) return;
    if (command.open === undefined) close();
    command.run();
  };
  const key = (event: KeyboardEvent) => {
    if (event.key === "Enter") run(found[at]);
    else if (event.key === "ArrowDown") setAt(Math.min(found.length - 1, at + 1));
    else if (event.key === "ArrowUp") setAt(Math.max(0, at - 1));
    else if (event.key === "Backspace" && text === "" && action !== null) setAction(null);
    else return;
    event.preventDefault();
  };
  return (
    <Dialog open={open} onClose={close} title={action?.name ?? "Go to"}>
      <input
        ref={input}
        className="search"
        role="combobox"
        aria-label={action?.prompt ?? "Page, action, name or id"}
        aria-expanded="true"
        aria-autocomplete="list"
        aria-controls="palette-list"
        aria-activedescendant={found[at] === undefined ? undefined : `palette-${at}`}
        placeholder={action?.prompt ?? "A page, an action, a name or an id…"}
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
            {searching ? "Searching…" : noMatch(action, typed)}
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
