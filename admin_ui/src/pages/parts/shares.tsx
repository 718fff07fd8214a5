// Parts of a whole as one bar: weights on the device by model, requests of an alias by model.
import type { ReactNode } from "react";
import "./shares.css";

export interface Part {
  key: string;
  /** Text after its percentage. */
  note?: ReactNode;
  value: number;
  /** False: its percentage is not shown. */
  known?: boolean;
  /** Index into the eight chart colours. */
  hue: number;
  /** Being loaded or evicted: drawn paler; `note` says which. */
  moving?: boolean;
}

export function shareSaid(part: number, whole: number): string {
  const value = whole <= 0 ? 0 : (part / whole) * 100;
  return `${Math.round(value * 10) / 10} %`;
}

/** Each part with its position and width, in percent of the bar. */
function placed(parts: readonly Part[], all: number): { part: Part; x: number; width: number }[] {
  let at = 0;
  return parts.map((part) => {
    const width = all <= 0 ? 0 : Math.min(100 - at, (100 * part.value) / all);
    const x = at;
    at += width;
    return { part, x, width };
  });
}

/** `whole`: the value of the full bar; default: the sum of all parts. The legend names each part. */
export function ShareBar({
  label,
  parts,
  whole,
  legend = true,
}: {
  label: string;
  parts: readonly Part[];
  whole?: number;
  legend?: boolean;
}) {
  const all = whole ?? parts.reduce((sum, part) => sum + part.value, 0);
  const drawn = placed(parts, all);
  const said = parts
    .map((part) => (part.known === false ? part.key : `${part.key} ${shareSaid(part.value, all)}`))
    .join(", ");
  return (
    <div className="shares">
      <svg
        className="share-bar"
        viewBox="0 0 100 8"
        preserveAspectRatio="none"
        role="img"
        aria-label={`${label}: ${said || "nothing"}`}
      >
        <rect className="share-rest" width="100" height="8" />
        {drawn.map(({ part, x, width }) => (
          <rect
            key={part.key}
            className={`c${part.hue % 8}${part.moving ? " share-moving" : ""}`}
            x={x}
            width={Math.max(0, width - (x + width < 99.9 ? 0.25 : 0))}
            height="8"
          />
        ))}
      </svg>
      {legend && (
        <ul className="share-words">
          {parts.map((part) => (
            <li key={part.key}>
              <svg viewBox="0 0 10 10" aria-hidden="true">
                <rect
                  className={`c${part.hue % 8}${part.moving ? " share-moving" : ""}`}
                  width="10"
                  height="10"
                  rx="2"
                />
              </svg>
              <span>{part.key}</span> {part.known !== false && <b className="num">{shareSaid(part.value, all)}</b>}
              {part.note !== undefined && <span className="faint num">{part.note}</span>}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
