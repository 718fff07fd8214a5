// A field that finds one of many by typing: tenants, keys, models. The API does the search.
import { type KeyboardEvent, useEffect, useId, useLayoutEffect, useRef, useState } from "react";
import type { PathsOf } from "../api/client";
import { type RowOf, useList } from "../api/query";
import { Field, type FieldProps, type FormState } from "./form";

export interface Choice {
  value: string;
  said: string;
  note?: string;
}

interface Props {
  id?: string;
  label?: string;
  value: string;
  /** The text for a value that is not among the choices. Default: the value. */
  said?: string;
  onChange: (value: string) => void;
  /** The choices for the text typed so far. */
  choices: readonly Choice[];
  onSearch: (text: string) => void;
  busy?: boolean;
  placeholder?: string;
  "aria-describedby"?: string | undefined;
  "aria-invalid"?: boolean | undefined;
}

const LIST_GAP_PX = 8; // between the field and its list, and the list and the window's edge

/** The control alone, for choices that the caller provides. */
export function Combobox({
  id,
  label,
  value,
  said: known = value,
  onChange,
  choices,
  onSearch,
  busy,
  placeholder,
  ...aria
}: Props) {
  const [text, setText] = useState<string | null>(null); // null: not being typed in
  const [at, setAt] = useState(0);
  const box = useRef<HTMLDivElement>(null);
  const own = useId();
  const open = text !== null;
  const pick = (choice: string) => {
    onChange(choice);
    setText(null);
    onSearch("");
  };
  const [up, setUp] = useState(false);
  useLayoutEffect(() => {
    if (!open) return;
    const field = box.current!.getBoundingClientRect();
    const below = innerHeight - field.bottom;
    const height = box.current!.querySelector("ul")!.offsetHeight + LIST_GAP_PX;
    setUp(height > below && field.top > below);
  }, [open, choices.length]);
  useEffect(() => {
    box.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }, [at, open]);
  const key = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (!open) setText("");
      else setAt(Math.max(0, Math.min(choices.length - 1, at + (event.key === "ArrowDown" ? 1 : -1))));
    } else if (open && text === "" && (event.key === "Home" || event.key === "End")) {
      event.preventDefault();
      setAt(event.key === "Home" ? 0 : Math.max(0, choices.length - 1));
    } else if (event.key === "Enter" && open) {
      event.preventDefault();
      const choice = choices[at];
      if (choice !== undefined) pick(choice.value);
      else if (text === "") pick("");
    } else if (event.key === "Escape" && open) {
      event.stopPropagation();
      setText(null);
    }
  };
  /** A text that is a choice's whole name is chosen when the field is left; any other text is dropped. */
  const leave = () => {
    const typed = text?.trim().toLowerCase() ?? "";
    const same = choices.find((choice) => [choice.value, choice.said].some((name) => name.toLowerCase() === typed));
    if (typed !== "" && same !== undefined) pick(same.value);
    else {
      setText(null);
      if (typed !== "") onSearch("");
    }
  };
  const said = choices.find((choice) => choice.value === value)?.said ?? known;
  return (
    <div
      className={up ? "combobox combobox-up" : "combobox"}
      ref={box}
      onBlur={(event) => open && !event.currentTarget.contains(event.relatedTarget) && leave()}
    >
      <input
        id={id}
        role="combobox"
        aria-label={label}
        aria-expanded={open}
        aria-controls={`${own}-list`}
        aria-autocomplete="list"
        aria-activedescendant={open && choices[at] !== undefined ? `${own}-${at}` : undefined}
        {...aria}
        value={text ?? said}
        placeholder={placeholder}
        autoComplete="off"
        spellCheck={false}
        onClick={() => text === null && setText("")}
        onChange={(event) => {
          setText(event.target.value);
          setAt(0);
          onSearch(event.target.value);
        }}
        onKeyDown={key}
      />
      {value !== "" && !open && (
        <button type="button" className="close" aria-label={`Clear ${label ?? "the choice"}`} onClick={() => pick("")}>
          ×
        </button>
      )}
      <ul id={`${own}-list`} role="listbox" aria-label={label ?? "Choices"} hidden={!open}>
        {open &&
          choices.map((choice, index) => (
            <li
              key={choice.value}
              id={`${own}-${index}`}
              role="option"
              aria-selected={index === at}
              onPointerDown={(event) => event.preventDefault()}
              onClick={() => pick(choice.value)}
            >
              <span>{choice.said}</span>
              {choice.note !== undefined && <span className="faint">{choice.note}</span>}
            </li>
          ))}
        {open && choices.length === 0 && (
          <li role="option" aria-selected={false} aria-disabled="true" className="faint">
            {busy ? "Searching…" : "No match"}
          </li>
        )}
      </ul>
    </div>
  );
}

/** A Combobox over a list of the API: `<Lookup path="/v1/admin/tenants" choice={(t) => ({ value: t.slug, said: t.slug
 * })} …/>`. */
export function Lookup<P extends PathsOf<"get">>({
  path,
  query,
  choice,
  ...control
}: {
  path: P;
  query?: Record<string, string>;
  choice: (row: RowOf<P>) => Choice;
} & Omit<Props, "choices" | "onSearch" | "busy">) {
  const [search, setSearch] = useState("");
  const late = useDebounced(search);
  const list = useList(path, { query: { ...query, search: late } }, { limit: 20 });
  const words = search.toLowerCase();
  const choices = list.rows
    .map(choice)
    .filter((one) => `${one.value} ${one.said} ${one.note ?? ""}`.toLowerCase().includes(words));
  return <Combobox {...control} choices={choices} onSearch={setSearch} busy={list.loading || list.busy} />;
}

const SHOWN_MAX = 100;

/** A Combobox over choices that the page knows: each word typed must be in the value, the text or the note. */
export function ChoiceLookup({
  choices,
  free,
  ...control
}: {
  choices: readonly Choice[];
  /** The note of the last choice, the typed text itself; without it, only the choices can be chosen. */
  free?: string;
} & Omit<Props, "choices" | "onSearch" | "busy">) {
  const [search, setSearch] = useState("");
  const words = spoken(search).split(" ").filter(Boolean);
  const found = choices.filter((one) => {
    const text = spoken(`${one.value} ${one.said} ${one.note ?? ""}`);
    return words.every((word) => text.includes(word));
  });
  const said = choices.find((one) => one.value === control.value)?.said;
  const typed = search.trim();
  const own: readonly Choice[] =
    free === undefined || typed === "" || found.some((one) => one.value === typed)
      ? []
      : [{ value: typed, said: typed, note: free }];
  return (
    <Combobox
      {...control}
      {...(said === undefined ? {} : { said })}
      choices={[...found.slice(0, SHOWN_MAX), ...own]}
      onSearch={setSearch}
    />
  );
}

/** Lower case, with spaces for the marks in names such as America/New_York. */
function spoken(text: string): string {
  return text.toLowerCase().replaceAll(/[_/\s]+/g, " ");
}

/** A form field that chooses one of `choices`. A value that is not among them is shown as it is. */
export function ChoiceField<V extends Record<string, string | boolean>>({
  choices,
  placeholder,
  ...field
}: FieldProps & { form: FormState<V>; choices: readonly Choice[]; placeholder?: string }) {
  return (
    <LookupField
      {...field}
      control={(props) => (
        <ChoiceLookup {...props} {...(placeholder === undefined ? {} : { placeholder })} choices={choices} />
      )}
    />
  );
}

/** Choices of names that are their own values. */
export function choicesOf(names: readonly string[]): Choice[] {
  return names.map((name) => ({ value: name, said: name }));
}

/** A tenant, by slug. */
export function TenantLookup(control: Omit<Props, "choices" | "onSearch" | "busy">) {
  return (
    <Lookup
      path="/v1/admin/tenants"
      placeholder="All tenants"
      label="Tenant"
      {...control}
      choice={(tenant) => ({ value: tenant.slug, said: tenant.slug, note: tenant.name })}
    />
  );
}

/** A form field that contains a lookup. */
export function LookupField<V extends Record<string, string | boolean>>({
  form,
  control,
  ...field
}: FieldProps & {
  form: FormState<V>;
  control: (props: {
    id: string;
    value: string;
    onChange: (value: string) => void;
    placeholder: string;
  }) => React.ReactNode;
}) {
  return (
    <Field {...field}>
      {(wired) =>
        control({
          ...wired,
          value: String(form.values[field.name] ?? ""),
          onChange: (value) => form.set(field.name, value as V[string]),
          placeholder: "Type to find",
        })
      }
    </Field>
  );
}

/** `value`, once it has not changed for `ms`. */
export function useDebounced<T>(value: T, ms = 200): T {
  const [late, setLate] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setLate(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return late;
}
