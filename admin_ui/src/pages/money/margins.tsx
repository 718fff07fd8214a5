// Margins: what each tier earned in a month, the cost of its device time, and the part of it that its preemptions
// caused.
import { useGet } from "../../api";
import {
  Count,
  EmptyState,
  Loaded,
  LookupFilter,
  Money,
  SelectFilter,
  StatTile,
  TenantLookup,
  Tiles,
  count,
  decimal,
  duration,
  exact,
  rounded,
  saveCsv,
  sum,
  useNow,
  useView,
} from "../../kit";
import type { AnswerOf } from "../../api";
import { monthOptions } from "../parts/months";

type Margins = AnswerOf<"/v1/admin/margins">;

export function Margins() {
  const view = useView({ tenant: "", month: "" });
  const now = useNow();
  const { tenant, month } = view.values;
  const found = useGet("/v1/admin/margins", {
    query: { ...(tenant === "" ? {} : { tenant }), ...(month === "" ? {} : { month }) },
  });
  return (
    <>
      <div className="table-bar margins-bar" role="search" aria-label="Filter margins">
        <SelectFilter label="Month" view={view} name="month" options={monthOptions(now, "Last complete month")} />
        <LookupFilter label="Tenant">
          <TenantLookup value={tenant} onChange={(next) => view.set({ tenant: next })} />
        </LookupFilter>
      </div>
      <Loaded of={found} lines={6}>
        {(margins) => <MarginReport of={margins} />}
      </Loaded>
    </>
  );
}

function MarginReport({ of }: { of: Margins }) {
  const tiers = of.tiers;
  const currencies = [...new Set(tiers.map((tier) => tier.currency))];
  const free = currencies.filter((one) => exact(of.device_second_prices[one] ?? of.device_second_picos) === 0n);
  if (tiers.length === 0)
    return (
      <EmptyState title={`No usage in ${of.month}`}>
        <p>Choose another month.</p>
      </EmptyState>
    );
  const save = () =>
    saveCsv(
      `margins-${of.month}`,
      [
        "tier",
        "currency",
        "requests",
        "usage",
        "corrections",
        "device_s",
        "preemption_s",
        "preempted_tokens",
        "cost",
        "due to preemption",
        "margin",
      ],
      tiers.map((tier) => [
        tier.tier,
        tier.currency,
        tier.requests,
        ...[tier.usage_picos, tier.correction_picos].map(text),
        tier.device_s,
        tier.preemption_s,
        tier.preempted_tokens,
        ...[tier.cost_picos, tier.preemption_picos, tier.margin_picos].map(text),
      ]),
    );
  return (
    <div className="stack">
      {free.length > 0 && (
        <p className="note">
          Device time has no cost in {free.join(", ")}: set <code>device_second_prices</code> under{" "}
          <code>[billing]</code> in laneway.toml.
        </p>
      )}
      <Tiles>
        {currencies.map((currency) => {
          const own = tiers.filter((tier) => tier.currency === currency);
          const [margin, earned] = [
            sum(own.map((tier) => tier.margin_picos)),
            sum(own.map((tier) => exact(tier.usage_picos) + exact(tier.correction_picos))),
          ];
          return (
            <StatTile
              key={currency}
              label={`Margin of ${of.month}, ${currency}`}
              value={rounded(margin)}
              note={`of ${rounded(earned)} earned`}
              tone={margin < 0n ? "bad" : "plain"}
            />
          );
        })}
        <StatTile
          label="Device time"
          value={duration(tiers.reduce((all, tier) => all + tier.device_s + tier.preemption_s, 0))}
          note={currencies
            .map((currency) => `${decimal(of.device_second_prices[currency] ?? of.device_second_picos)} ${currency}`)
            .join(", ")
            .concat(" per second")}
        />
        <StatTile
          label="Lost to preemption"
          value={duration(tiers.reduce((all, tier) => all + tier.preemption_s, 0))}
          note={`${count(sum(tiers.map((tier) => tier.preempted_tokens)))} tokens recomputed`}
        />
      </Tiles>
      <div className="row margins-head">
        <h2>By tier, {of.month}</h2>
        <button type="button" className="button" onClick={save}>
          CSV
        </button>
      </div>
      {currencies.map((currency) => (
        <div
          key={currency}
          className="table-scroll table-block"
          tabIndex={0}
          role="region"
          aria-label={`Margins by tier, ${currency}`}
        >
          <table className="table table-small">
            <caption className="sr-only">Margins by tier, {currency}</caption>
            <thead>
              <tr>
                <th scope="col">Tier</th>
                <th scope="col" className="end">
                  Requests
                </th>
                <th scope="col" className="end">
                  Usage
                </th>
                <th scope="col" className="end">
                  Corrections
                </th>
                <th scope="col" className="end">
                  Device-seconds
                </th>
                <th scope="col" className="end">
                  Preemption, s
                </th>
                <th scope="col" className="end">
                  Cost
                </th>
                <th scope="col" className="end">
                  due to preemption
                </th>
                <th scope="col" className="end">
                  Margin
                </th>
              </tr>
            </thead>
            <tbody>
              {tiers
                .filter((tier) => tier.currency === currency)
                .map((tier) => (
                  <tr key={`${tier.tier} ${tier.currency}`}>
                    <th scope="row">{tier.tier ?? <span className="faint">no tier</span>}</th>
                    <td data-label="Requests" className="end">
                      <Count value={tier.requests} />
                    </td>
                    <td data-label="Usage" className="end">
                      <Money picos={tier.usage_picos} short />
                    </td>
                    <td data-label="Corrections" className="end">
                      <Money picos={tier.correction_picos} short />
                    </td>
                    <td data-label="Device-seconds" className="end num">
                      {tier.device_s.toFixed(3)}
                    </td>
                    <td data-label="Preemption, s" className="end num">
                      {tier.preemption_s.toFixed(3)}
                    </td>
                    <td data-label="Cost" className="end">
                      <Money picos={tier.cost_picos} short />
                    </td>
                    <td data-label="due to preemption" className="end">
                      <Money picos={tier.preemption_picos} short />
                    </td>
                    <td data-label="Margin" className="end">
                      <b className={exact(tier.margin_picos) < 0n ? "was" : ""}>
                        <Money picos={tier.margin_picos} currency={tier.currency} short />
                      </b>
                    </td>
                  </tr>
                ))}
            </tbody>
          </table>
        </div>
      ))}
      <p className="note">
        Device time lost to a preemption counts for the tier that caused it. Includes ledger rows up to{" "}
        {count(of.sequence)}.
      </p>
    </div>
  );
}

function text(picos: number | bigint): string {
  return decimal(picos, false).replace("−", "-");
}
