// The engines of the fleet, for the pages that show one of them or all.
import { type AnswerOf, useGet } from "../../api";
import { Badge, type Tone } from "../../kit";

export type EnginesAnswer = AnswerOf<"/v1/admin/engines">;
export type Engine = EnginesAnswer["data"][number];

const EVERY_MS = 2_000;

/** All engines of the gateway, refreshed while the page is visible. */
export function useEngines() {
  return useGet("/v1/admin/engines", undefined, { everyMs: EVERY_MS });
}

const TONES: Record<Engine["state"], Tone> = {
  ready: "good",
  draining: "warn",
  leaving: "warn",
  stuck: "bad",
  connecting: "bad",
};

export function EngineState({ of: engine }: { of: Engine }) {
  return <Badge tone={TONES[engine.state]}>{engine.state}</Badge>;
}
