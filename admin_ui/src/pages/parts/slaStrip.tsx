// The days of a tier as a strip: one control, on which arrow keys or the pointer choose a day; its figures are below.
import { type KeyboardEvent, type PointerEvent, useRef, useState } from "react";
import { count } from "../../kit";
import { type Day, VERDICTS, ms, promised, share } from "./slaFigures";

const HEIGHT = 30;
/** The height of a day by its verdict: so that a missed day differs from a kept day without its colour. */
const TALL: Record<Day["verdict"], number> = { kept: 16, missed: HEIGHT, not_measured: 10, no_traffic: 3 };

export function DayStrip({ name, days }: { name: string; days: readonly Day[] }) {
  const [chosen, setChosen] = useState(() => lastWithRequests(days));
  const strip = useRef<HTMLDivElement>(null);
  const at = Math.min(chosen, days.length - 1);
  const day = days[at]!;
  const point = (event: PointerEvent) => {
    const box = strip.current!.getBoundingClientRect();
    const index = Math.floor(((event.clientX - box.left) / box.width) * days.length);
    setChosen(Math.max(0, Math.min(days.length - 1, index)));
  };
  const press = (event: KeyboardEvent) => {
    const moved = moveOf(event.key, at, days.length);
    if (moved === null) return;
    event.preventDefault();
    setChosen(Math.max(0, Math.min(days.length - 1, moved)));
  };
  return (
    <div className="sla-strip">
      <div
        ref={strip}
        className="sla-cells"
        role="slider"
        tabIndex={0}
        aria-label={`Days of ${name}`}
        aria-valuemin={1}
        aria-valuemax={days.length}
        aria-valuenow={at + 1}
        aria-valuetext={saidOf(day)}
        onKeyDown={press}
        onPointerDown={point}
        onPointerMove={point}
      >
        <svg viewBox={`0 0 ${days.length} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
          <rect className="chosen" x={at} width={1} height={HEIGHT} />
          {days.map((one, index) => (
            <rect
              key={one.date}
              className={one.verdict}
              x={index + 0.1}
              y={HEIGHT - TALL[one.verdict]}
              width={0.8}
              height={TALL[one.verdict]}
            />
          ))}
        </svg>
      </div>
      <p className="sla-ends num" aria-hidden="true">
        <span>{days[0]!.date}</span>
        <span className="sla-key">
          {(["kept", "missed", "not_measured", "no_traffic"] as const).map((verdict) => (
            <span key={verdict}>
              <svg viewBox={`0 0 10 ${HEIGHT}`} preserveAspectRatio="none">
                <rect className={verdict} y={HEIGHT - TALL[verdict]} width={10} height={TALL[verdict]} />
              </svg>
              {VERDICTS[verdict]}
            </span>
          ))}
        </span>
        <span>{days.at(-1)!.date}</span>
      </p>
      <p className="sla-chosen num">{saidOf(day)}</p>
    </div>
  );
}

function lastWithRequests(days: readonly Day[]): number {
  const found = days.findLastIndex((day) => day.verdict !== "no_traffic");
  return found < 0 ? days.length - 1 : found;
}

function moveOf(key: string, at: number, length: number): number | null {
  if (key === "ArrowLeft" || key === "ArrowDown") return at - 1;
  if (key === "ArrowRight" || key === "ArrowUp") return at + 1;
  if (key === "PageDown") return at - 7;
  if (key === "PageUp") return at + 7;
  if (key === "Home") return 0;
  return key === "End" ? length - 1 : null;
}

function saidOf(day: Day): string {
  if (day.verdict === "no_traffic") return `${day.date}: no requests.`;
  const parts = [
    `first token ${share(day.ttft_within, promised(day))} of ${count(promised(day))} in target, p99 ${ms(day.ttft_p99_ms)}`,
    `between tokens ${share(day.itl_within, day.itl_measured)} of ${count(day.itl_measured)} in target, p99 ${ms(day.itl_p99_ms)}`,
    `${count(day.refused)} refused, ${count(day.unanswered)} unanswered, ${count(day.preemptions)} preemptions`,
  ];
  return `${day.date}: ${VERDICTS[day.verdict]}; ${parts.join("; ")}.`;
}
