// Aliases, and the bar of their models' weights.
import { type RowOf, useList, useMay } from "../../api";
import { type Part, ShareBar } from "../parts/shares";

export type Alias = RowOf<"/v1/admin/aliases">;
export const ALIASES = ["/v1/admin/aliases", "/v1/admin/audit_log", "/v1/models"];
const FIRST = 500;

/** The first 500 aliases. */
export function useAliases(): readonly Alias[] {
  return useList("/v1/admin/aliases", {}, { enabled: useMay()("models:read"), limit: FIRST }).rows;
}

/** Whether all arms are versions of adapters, each of which only the adapter's tenants may call. */
export function splitsVersions(alias: Alias): boolean {
  return alias.models.every((target) => target.model.includes("@"));
}

/** `hues` by model, as on every page; a model that no longer exists has the last hue. */
export function Shares({
  name,
  targets,
  hues,
  legend = true,
}: {
  name: string;
  targets: readonly { model: string; weight: number }[];
  hues: ReadonlyMap<string, number>;
  legend?: boolean;
}) {
  const parts: Part[] = targets.map((target, index) => ({
    key: target.model,
    value: target.weight,
    hue: hues.get(target.model) ?? 7 - index,
    ...(hues.has(target.model) || target.model.includes("@") ? {} : { note: "not served" }),
  }));
  return <ShareBar label={`Requests for ${name || "this alias"}`} parts={parts} legend={legend} />;
}
