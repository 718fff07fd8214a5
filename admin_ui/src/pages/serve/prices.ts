// Exact conversion between prices per million tokens, as shown, and picos per token, as in the API.
import { useMemo } from "react";
import { type RowOf, useList, useMay } from "../../api";
import { decimal, exact, picosOf, useNow, fieldError } from "../../kit";
import { useTenants } from "../parts/names";

export type Price = RowOf<"/v1/admin/prices">;
const MILLION = 1_000_000n;

export function perMillion(picosPerToken: number): string {
  return decimal(exact(picosPerToken) * MILLION);
}

/** The reverse conversion. Throws a field error if it is not a price. */
export function perTokenOf(text: string, param: string): number {
  const picos = picosOf(text);
  if (picos === null) throw fieldError(param, `'${text}' is not an amount of money.`);
  if (picos % MILLION !== 0n) throw fieldError(param, `'${text}' per million tokens is finer than a pico per token.`);
  return Number(picos / MILLION);
}

export interface CurrentPrice {
  currency: string;
  now: Price | null;
  next: Price | null;
}

/** A model's current and next price by currency, the currency of most tenants first, and all versions, latest first. */
export function usePrices(subject: string): {
  current: readonly CurrentPrice[];
  versions: readonly Price[];
  known: boolean;
} {
  const may = useMay()("prices:read");
  const list = useList("/v1/admin/prices", { query: { subject } }, { enabled: may, limit: 500 });
  const now = useNow();
  const tenants = useTenants();
  return useMemo(() => {
    const versions = list.rows.filter((one) => one.subject === subject);
    const currencies = byUse([...new Set(versions.map((one) => one.currency))], tenants);
    const current = currencies.map((currency) => {
      const own = versions
        .filter((one) => one.currency === currency)
        .sort((a, b) => b.effective_from - a.effective_from || b.created_at - a.created_at);
      return {
        currency,
        now: own.find((one) => one.effective_from <= now) ?? null,
        next: own.filter((one) => one.effective_from > now).at(-1) ?? null,
      };
    });
    return { current, versions, known: !list.loading };
  }, [list.rows, subject, now, tenants, list.loading]);
}

/** Currencies, the currency of most tenants first. */
export function byUse(currencies: readonly string[], tenants: ReadonlyMap<string, { currency: string }>): string[] {
  const payers = new Map<string, number>();
  for (const { currency } of tenants.values()) payers.set(currency, (payers.get(currency) ?? 0) + 1);
  return [...currencies].sort((a, b) => (payers.get(b) ?? 0) - (payers.get(a) ?? 0) || a.localeCompare(b));
}

/** The tier whose multiplier is 1. */
export function plainTier(price: Price): string {
  return "standard" in price.tiers ? "standard" : (Object.keys(price.tiers)[0] ?? "");
}
