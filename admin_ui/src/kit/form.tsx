// Forms. An error of the API is shown beside its field; a failed save keeps the input.
import { type ReactNode, createContext, useCallback, useContext, useEffect, useId, useRef, useState } from "react";
import { ApiError, type FieldFault, apiError } from "../api/errors";
import { ungrouped } from "./numbers";
import { Problem } from "./parts";

type Values = Record<string, string | boolean>;

export interface FormState<V extends Values> {
  values: V;
  set: <N extends keyof V>(name: N, value: V[N]) => void;
  error: ApiError | null;
  busy: boolean;
  /** Runs `save`; its error is shown beside the field. */
  submit: (save: (values: V) => Promise<unknown>) => Promise<void>;
  reset: (values?: V) => void;
}

/** The values of a form by name: `useForm({ slug: "", shared: false })`. Names are the API's field names, so that
 * errors find their fields. */
export function useForm<V extends Values>(initial: V): FormState<V> {
  const [values, setValues] = useState(initial);
  const [error, setError] = useState<ApiError | null>(null);
  const [busy, setBusy] = useState(false);
  return {
    values,
    error,
    busy,
    set: (name, value) => {
      setValues((now) => ({ ...now, [name]: value }));
      setError((now) => without(now, String(name)));
    },
    reset: (next) => {
      setValues(next ?? initial);
      setError(null);
    },
    submit: async (save) => {
      setBusy(true);
      setError(null);
      try {
        await save(values);
      } catch (thrown) {
        setError(apiError(thrown));
      } finally {
        setBusy(false);
      }
    },
  };
}

/** The error without the faults of one field; null if no fault is left. */
function without(error: ApiError | null, name: string): ApiError | null {
  if (error === null) return null;
  const left = error.fields.filter((fault) => fieldOf(fault.param) !== name);
  if (left.length === error.fields.length) return error;
  const [first] = left;
  return first === undefined
    ? null
    : new ApiError(error.status, error.code, first.param, first.message, error.requestId, left);
}

/** Reads all fields of a form: `gather({ limit: () => numberOf(values.limit, "limit") })`. Throws the errors of all
 * fields as one. */
export function gather<R extends Record<string, () => unknown>>(reads: R): { [N in keyof R]: ReturnType<R[N]> } {
  const read: Record<string, unknown> = {};
  const faults: FieldFault[] = [];
  for (const [name, of] of Object.entries(reads)) {
    try {
      read[name] = of();
    } catch (thrown) {
      if (!(thrown instanceof ApiError)) throw thrown;
      faults.push(...thrown.fields);
    }
  }
  const [first] = faults;
  if (first !== undefined) throw new ApiError(400, null, first.param, first.message, null, faults);
  return read as { [N in keyof R]: ReturnType<R[N]> };
}

/** The text, trimmed. Throws the field error `said` if it is blank. */
export function required(text: string, param: string, said: string): string {
  if (text.trim() === "") throw fieldError(param, said);
  return text.trim();
}

/** An error of one field found in the browser: `throw fieldError("limit", "…")` in a save. */
export function fieldError(param: string, message: string): ApiError {
  return new ApiError(400, null, param, message);
}

/** The field named by `param`: "thresholds[0]" and "body.thresholds" are `thresholds`. */
function fieldOf(param: string | null): string | null {
  return param === null ? null : (/^(?:body\.)?(\w+)/.exec(param)?.[1] ?? null);
}

const Fields = createContext<{ error: ApiError | null; known: Set<string>; bump: () => void }>({
  error: null,
  known: new Set(),
  bump: () => undefined,
});

/** The faults of an error, at least one: an error that names no field is a fault of the whole form. */
function faultsOf(error: ApiError): readonly FieldFault[] {
  return error.fields.length > 0 ? error.fields : [{ param: null, message: error.message }];
}

/** The form element with its buttons. `save` throws the API's error. */
export function Form<V extends Values>({
  form,
  save,
  verb,
  children,
  onCancel,
  cancel = "Cancel",
}: {
  form: FormState<V>;
  save: (values: V) => Promise<unknown>;
  verb: string;
  children: ReactNode;
  onCancel?: () => void;
  /** The text of the button that calls `onCancel`. */
  cancel?: string;
}) {
  const element = useRef<HTMLFormElement>(null);
  const known = useRef(new Set<string>());
  const [, setBumps] = useState(0);
  const bump = useCallback(() => setBumps((now) => now + 1), []);
  const { error } = form;
  useEffect(() => {
    if (error !== null) element.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus();
  }, [error]);
  const elsewhere =
    error === null ? [] : faultsOf(error).filter((fault) => !known.current.has(fieldOf(fault.param) ?? ""));
  return (
    <Fields.Provider value={{ error, known: known.current, bump }}>
      <form
        ref={element}
        className="form"
        noValidate
        onSubmit={(event) => {
          event.preventDefault();
          event.stopPropagation();
          if (!form.busy) void form.submit(save);
        }}
      >
        {children}
        {error !== null && elsewhere.length > 0 && <Problem error={error} said={elsewhere.map((one) => one.message)} />}
        <div className="form-end">
          {onCancel !== undefined && (
            <button type="button" className="button" onClick={onCancel}>
              {cancel}
            </button>
          )}
          <button type="submit" className="button button-main" disabled={form.busy}>
            {form.busy ? "Saving…" : verb}
          </button>
        </div>
      </form>
    </Fields.Provider>
  );
}

export interface FieldProps {
  /** The API's name of the field. */
  name: string;
  label: string;
  hint?: ReactNode;
  optional?: boolean;
}

interface Wired {
  id: string;
  "aria-describedby": string | undefined;
  "aria-invalid": boolean | undefined;
}

/** Label, hint and error around any control, for controls other than the fields below. */
export function Field({
  name,
  label,
  hint,
  optional,
  children,
}: FieldProps & { children: (wired: Wired) => ReactNode }) {
  const id = useId();
  const { error, known, bump } = useContext(Fields);
  useEffect(() => {
    known.add(name);
    bump();
    return () => void known.delete(name);
  }, [known, name, bump]);
  const faults = error?.fields.filter((fault) => fieldOf(fault.param) === name).map((fault) => fault.message) ?? [];
  const refused = faults.length === 0 ? null : faults.join(" ");
  const described = [hint === undefined ? null : `${id}-hint`, refused === null ? null : `${id}-error`].filter(
    (one) => one !== null,
  );
  return (
    <div className={refused === null ? "field" : "field field-bad"}>
      <label htmlFor={id}>
        {label}
        {optional && <span className="optional"> optional</span>}
      </label>
      {children({
        id,
        "aria-describedby": described.join(" ") || undefined,
        "aria-invalid": refused === null ? undefined : true,
      })}
      {refused !== null && (
        <p className="field-error" id={`${id}-error`} role="alert">
          {refused}
        </p>
      )}
      {hint !== undefined && (
        <p className="hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
    </div>
  );
}

type NamesOf<V, T> = { [N in keyof V]: V[N] extends T ? N : never }[keyof V] & string;
type Of<V extends Values, T> = Omit<FieldProps, "name"> & { form: FormState<V>; name: NamesOf<V, T> };

export function TextField<V extends Values>({
  form,
  type = "text",
  placeholder,
  mono,
  unit,
  disabled,
  autoFocus,
  autoComplete = "off",
  ...field
}: Of<V, string> & {
  type?: "text" | "password" | "number" | "url" | "date" | "datetime-local";
  placeholder?: string;
  mono?: boolean;
  /** Shown after the control: "USD", "tokens". */
  unit?: string;
  disabled?: boolean;
  autoFocus?: boolean;
  autoComplete?: string;
}) {
  return (
    <Field {...field}>
      {(wired) => (
        <span className="control">
          <input
            {...wired}
            type={type === "number" ? "text" : type}
            inputMode={type === "number" ? "decimal" : undefined}
            className={mono || type === "number" ? "mono" : undefined}
            value={form.values[field.name] as string}
            onChange={(event) => form.set(field.name, event.target.value as V[typeof field.name])}
            placeholder={placeholder}
            disabled={disabled}
            autoFocus={autoFocus}
            autoComplete={autoComplete}
            spellCheck={false}
          />
          {unit !== undefined && <span className="unit">{unit}</span>}
        </span>
      )}
    </Field>
  );
}

export function TextArea<V extends Values>({
  form,
  rows = 4,
  placeholder,
  mono,
  disabled,
  ...field
}: Of<V, string> & {
  rows?: number;
  placeholder?: string;
  /** For code: a fixed pitch, and no spelling check. */
  mono?: boolean;
  disabled?: boolean;
}) {
  return (
    <Field {...field}>
      {(wired) => (
        <textarea
          {...wired}
          rows={rows}
          placeholder={placeholder}
          className={mono ? "mono" : undefined}
          spellCheck={mono ? false : undefined}
          disabled={disabled}
          value={form.values[field.name] as string}
          onChange={(event) => form.set(field.name, event.target.value as V[typeof field.name])}
        />
      )}
    </Field>
  );
}

/** An option: a value, or a value and its label. */
export type Option = string | readonly [value: string, said: string];

export function Options({ options }: { options: readonly Option[] }) {
  return options.map((option) => {
    const [value, said] = typeof option === "string" ? [option, option] : option;
    return (
      <option key={value} value={value}>
        {said}
      </option>
    );
  });
}

export function SelectField<V extends Values>({
  form,
  options,
  disabled,
  ...field
}: Of<V, string> & { options: readonly Option[]; disabled?: boolean }) {
  return (
    <Field {...field}>
      {(wired) => (
        <select
          {...wired}
          disabled={disabled}
          value={form.values[field.name] as string}
          onChange={(event) => form.set(field.name, event.target.value as V[typeof field.name])}
        >
          <Options options={options} />
        </select>
      )}
    </Field>
  );
}

export function CheckField<V extends Values>({ form, name, label, hint }: Of<V, boolean>) {
  const id = useId();
  return (
    <div className="field field-check">
      <input
        id={id}
        type="checkbox"
        checked={form.values[name] as boolean}
        onChange={(event) => form.set(name, event.target.checked as V[typeof name])}
        aria-describedby={hint === undefined ? undefined : `${id}-hint`}
      />
      <label htmlFor={id}>{label}</label>
      {hint !== undefined && (
        <p className="hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
    </div>
  );
}

/** A number that may be blank (null). Throws a field error if it is not a number. */
export function numberOf(text: string, param: string): number | null {
  if (text.trim() === "") return null;
  const value = Number(ungrouped(text) ?? Number.NaN);
  if (!Number.isFinite(value)) throw fieldError(param, `'${text}' is not a number.`);
  return value;
}
