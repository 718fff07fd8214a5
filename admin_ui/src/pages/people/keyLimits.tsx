// What a key may call, from where, and the tags of its usage: as texts of a form, and as facts.
import { type ReactNode } from "react";
import { type FormState, TextArea, TextField, fieldError } from "../../kit";
import { ModelNamesField } from "../parts/pickers";

export type LimitTexts = { models: string; allowed_ips: string; tags: string };
type Limits = { models: string[] | null; allowed_ips: string[] | null; tags: Record<string, string> };
/** As a key of the API has them. */
type GivenLimits = { [Name in keyof Limits]?: Limits[Name] | null };

export const NETWORKS_HINT = "Networks or addresses, separated by spaces. Blank: every address.";

export function textsOf(limits: GivenLimits): LimitTexts {
  return {
    models: (limits.models ?? []).join(" "),
    allowed_ips: (limits.allowed_ips ?? []).join(" "),
    tags: linesOf(limits.tags ?? {}),
  };
}

/** The words of a text; null if there are none: no restriction. */
export function listOf(text: string): string[] | null {
  const words = text.split(/[\s,]+/).filter((word) => word !== "");
  return words.length === 0 ? null : words;
}

function tagsOf(text: string): Record<string, string> {
  const lines = text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");
  const tags = lines.map((line): [string, string] => {
    const at = line.indexOf("=");
    if (at < 1) throw fieldError("tags", `'${line}' is not NAME=VALUE.`);
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  });
  return Object.fromEntries(tags);
}

const linesOf = (tags: Record<string, string>) =>
  Object.entries(tags)
    .map(([name, value]) => `${name}=${value}`)
    .join("\n");

export function limitsOf(texts: LimitTexts): Limits {
  return { models: listOf(texts.models), allowed_ips: listOf(texts.allowed_ips), tags: tagsOf(texts.tags) };
}

export type LimitForm = FormState<LimitTexts>;

export function LimitFields({ form, usage }: { form: LimitForm; usage: boolean }) {
  return (
    <>
      {usage && (
        <ModelNamesField
          form={form}
          name="models"
          label="Models"
          optional
          hint="Models, adapters and aliases that the key may call. None: all of its tenant."
        />
      )}
      <TextField form={form} name="allowed_ips" label="Addresses" mono optional hint={NETWORKS_HINT} />
      {usage && (
        <TextArea
          form={form}
          name="tags"
          label="Tags"
          rows={2}
          mono
          optional
          placeholder="team=search"
          hint="NAME=VALUE, one a line. They mark its usage from now on, in reports and exports."
        />
      )}
    </>
  );
}

const list = (words: string[] | null | undefined, all: string) =>
  words == null ? <span className="faint">{all}</span> : <code>{words.join(" ")}</code>;

/** Rows of a key's facts. */
export function limitFacts(limits: GivenLimits, usage: boolean): (readonly [string, ReactNode])[] {
  const tags = linesOf(limits.tags ?? {});
  return [
    ...(usage ? [["Models", list(limits.models, "all of its tenant")] as const] : []),
    ["Addresses", list(limits.allowed_ips, "every address")],
    ...(usage && tags !== "" ? [["Tags", <code>{tags.split("\n").join(" ")}</code>] as const] : []),
  ];
}
