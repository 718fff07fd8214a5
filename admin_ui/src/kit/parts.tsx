// Small components of pages.
import { type ReactNode, useEffect, useRef, useState } from "react";
import type { ApiError } from "../api/errors";
import { type Exact, exact } from "./numbers";

export type Tone = "plain" | "good" | "warn" | "bad" | "accent";

/** A state as a word; the tone only adds to it. */
export function Badge({ tone = "plain", children }: { tone?: Tone; children: ReactNode }) {
  return <span className={`badge badge-${tone}`}>{children}</span>;
}

let pages = 0;

/** A page's head: title (also the document's), note and actions. */
export function PageHead({
  title,
  note,
  children,
  trail,
}: {
  title: string;
  note?: ReactNode;
  children?: ReactNode;
  trail?: ReactNode;
}) {
  const head = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    // After navigation the heading gets the focus, so that screen readers announce the page; at load the skip link
    // comes first.
    if (pages++ > 0 && document.querySelector("[role=dialog]") === null) head.current?.focus({ preventScroll: true });
  }, []);
  return (
    <header className="page-head">
      <title>{`${title} – Laneway`}</title>
      <div>
        {trail !== undefined && (
          <nav className="trail" aria-label="Breadcrumb">
            {trail}
          </nav>
        )}
        <h1 ref={head} tabIndex={-1}>
          {title}
        </h1>
        {note !== undefined && <p className="note">{note}</p>}
      </div>
      {children !== undefined && <div className="actions">{children}</div>}
    </header>
  );
}

/** A section of a page with its own heading. */
export function Section({
  title,
  children,
  actions,
  note,
}: {
  title: string;
  children: ReactNode;
  actions?: ReactNode;
  note?: ReactNode;
}) {
  return (
    <section className="section" aria-label={title}>
      <div className="section-head">
        <h2>{title}</h2>
        {note !== undefined && <span className="note">{note}</span>}
        {actions !== undefined && <div className="actions">{actions}</div>}
      </div>
      {children}
    </section>
  );
}

/** One headline number. */
export function StatTile({
  label,
  value,
  note,
  tone = "plain",
  children,
}: {
  label: string;
  value: ReactNode;
  note?: ReactNode;
  tone?: Tone;
  children?: ReactNode;
}) {
  return (
    <div className={`tile tile-${tone}`}>
      <div className="tile-label">{label}</div>
      <div className="tile-value num">{value}</div>
      {note !== undefined && <div className="tile-note">{note}</div>}
      {children}
    </div>
  );
}

export function Tiles({ children }: { children: ReactNode }) {
  return <div className="tiles">{children}</div>;
}

/** Names and values of one object. */
export function Facts({ facts }: { facts: readonly (readonly [string, ReactNode])[] }) {
  return (
    <dl className="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A placeholder while data is loading. */
export function Skeleton({ lines = 3 }: { lines?: number }) {
  return (
    <div className="skeleton" role="status">
      <span className="sr-only">Loading…</span>
      {Array.from({ length: lines }, (_, index) => (
        <i key={index} className={`w${index % 4}`} />
      ))}
    </div>
  );
}

/** Shown in place of an empty list: why it is empty, and what to do. */
export function EmptyState({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <p className="empty-title">{title}</p>
      {children}
    </div>
  );
}

/** An error, with the API's message, or with the messages `said`. */
export function Problem({
  error,
  again,
  said = [error.message],
}: {
  error: ApiError;
  again?: () => void;
  said?: readonly string[];
}) {
  return (
    <div className="problem" role="alert">
      {said.map((message) => (
        <p key={message}>{message}</p>
      ))}
      {error.requestId !== null && (
        <p className="faint">
          Request <code>{error.requestId}</code>
        </p>
      )}
      {again !== undefined && (
        <button type="button" className="button" onClick={again}>
          Try again
        </button>
      )}
    </div>
  );
}

/** The data of a useGet: `<Loaded of={tenant}>{(data) => …}</Loaded>`; a skeleton or the error until it is loaded. */
export function Loaded<D>({
  of,
  lines,
  children,
}: {
  of: { data: D | undefined; error: ApiError | null; refetch: () => unknown };
  lines?: number;
  children: (data: D) => ReactNode;
}) {
  if (of.data !== undefined) return <>{children(of.data)}</>;
  if (of.error !== null) return <Problem error={of.error} again={() => void of.refetch()} />;
  return <Skeleton lines={lines ?? 4} />;
}

/** Copies `text`. */
export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return (
    <button type="button" className="copy" onClick={() => void copy()} aria-label={`${label}: ${text}`}>
      <span aria-live="polite">{done ? "Copied" : label}</span>
    </button>
  );
}

/** A name on one line; a long name ends with an ellipsis, and the title is the full name. */
export function LongName({ text }: { text: string }) {
  return (
    <span className="long-name" title={text}>
      {text}
    </span>
  );
}

/** A full identifier, with a button to copy it. */
export function Id({ value }: { value: string }) {
  return (
    <span className="id">
      <code>{value}</code>
      <Copy text={value} />
    </span>
  );
}

/** A shortened identifier for a cell; the title is the full identifier, and a button copies it. */
export function ShortId({ value }: { value: string }) {
  const short = value.length > 20 ? `${value.slice(0, 9)}…${value.slice(-4)}` : value;
  return (
    <span className="id id-short">
      <code title={value}>{short}</code>
      {short !== value && <Copy text={value} />}
    </span>
  );
}

export function CodeBlock({ text, label = "Code" }: { text: string; label?: string }) {
  return (
    <div className="code-block">
      <pre tabIndex={0} role="region" aria-label={label}>
        <code>{text}</code>
      </pre>
      <Copy text={text} />
    </div>
  );
}

/** A budget as a bar: posted, held and left. `say` formats an amount. */
export function Meter({
  posted,
  held,
  limit,
  say,
  label,
}: {
  posted: Exact;
  held: Exact;
  limit: Exact;
  say: (amount: bigint) => string;
  label: string;
}) {
  const [used, kept, all] = [exact(posted), exact(held), exact(limit)];
  const share = (amount: bigint) =>
    all <= 0n ? (amount > 0n ? 100 : 0) : Math.min(100, Number((amount * 10_000n) / all) / 100);
  const [a, b] = [share(used), share(used + kept)];
  const left = all - used - kept;
  const tone = b >= 100 ? "bad" : b >= 80 ? "warn" : "good";
  return (
    <div className={`meter meter-${tone}`}>
      <svg
        viewBox="0 0 100 4"
        preserveAspectRatio="none"
        role="img"
        aria-label={`${label}: ${say(used)} posted, ${say(kept)} held, ${say(left)} left of ${say(all)}`}
      >
        <rect className="meter-all" width="100" height="4" />
        <rect className="meter-held" width={b} height="4" />
        <rect className="meter-posted" width={a} height="4" />
      </svg>
      <div className="meter-words num" aria-hidden="true">
        <span>{say(used)} posted</span>
        {kept > 0n && <span>{say(kept)} held</span>}
        <span className="meter-left">
          {say(left)} left of {say(all)}
        </span>
      </div>
    </div>
  );
}

/** A small line chart for a cell or a tile; `label` is its text for screen readers. */
export function Sparkline({ values, label }: { values: readonly number[]; label: string }) {
  const highest = Math.max(...values, 0);
  const step = 100 / Math.max(1, values.length - 1);
  const points = values.map(
    (value, index) => `${(index * step).toFixed(2)},${(23 - (highest === 0 ? 0 : (value / highest) * 21)).toFixed(2)}`,
  );
  return (
    <svg className="sparkline" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label={label}>
      {values.length > 1 && <polyline points={points.join(" ")} vectorEffect="non-scaling-stroke" />}
    </svg>
  );
}
