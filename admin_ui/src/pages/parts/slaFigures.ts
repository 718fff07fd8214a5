// The figures of an SLA report, and how they are written.
import type { AnswerOf } from "../../api";
import { duration } from "../../kit";

export type Answer = AnswerOf<"/v1/admin/sla">;
export type Group = Answer["data"][number];
export type Figures = Group["total"];
export type Day = Group["days"][number];
export type Targets = AnswerOf<"/v1/admin/tiers">["data"][number]["targets"];

export const VERDICTS: Record<Figures["verdict"], string> = {
  kept: "kept",
  missed: "missed",
  not_measured: "not measured",
  no_traffic: "no requests",
};

/** Requests that should have had a first token. */
export function promised(of: Figures): number {
  return of.ttft_measured + of.refused + of.unanswered;
}

/** Truncated, not rounded, so that 100 % means all requests. */
export function share(within: number, of: number): string {
  if (of === 0) return "–";
  return within === of ? "100 %" : `${(Math.floor((10_000 * within) / of) / 100).toFixed(2)} %`;
}

export function ms(value: number | null): string {
  return value === null ? "–" : duration(value / 1000);
}
