// The billing profile of one tenant, with its form.
import { useState } from "react";
import { useGet, useMay, useSession } from "../../api";
import { Dialog, Facts, Link, Loaded, Section } from "../../kit";
import { type Profile, ProfileForm } from "./profileForm";

/** The seller on documents, with its days until payment; undefined for a tenant's admin. */
export function useIssuer() {
  const may = useMay()("billing:read");
  const bound = useSession().tenant !== null;
  return useGet("/v1/admin/issuer", undefined, { enabled: may && !bound });
}

export function BillingProfile({ tenant }: { tenant: { id: string; slug: string; name: string } }) {
  const found = useGet("/v1/admin/tenants/{tenant_id}/billing_profile", { path: { tenant_id: tenant.id } });
  const bound = useSession().tenant !== null;
  const may = useMay()("billing:write") && !bound;
  const [open, setOpen] = useState(false);
  const days = useIssuer().data?.payment_days;
  return (
    <Loaded of={found} lines={5}>
      {(profile) => (
        <Section
          title="Billing profile"
          note="On documents that are issued from now on. Issued documents do not change."
          actions={
            !bound && (
              <>
                <Link to="/billing-profiles">All billing profiles</Link>
                {may && (
                  <button type="button" className="button button-main" onClick={() => setOpen(true)}>
                    Edit profile
                  </button>
                )}
              </>
            )
          }
        >
          <ProfileFacts of={profile} name={tenant.name} days={days} />
          <Dialog open={open} onClose={() => setOpen(false)} title={`Billing profile of ${tenant.name}`} keep>
            <ProfileForm profile={profile} name={tenant.name} days={days} onDone={() => setOpen(false)} />
          </Dialog>
        </Section>
      )}
    </Loaded>
  );
}

function ProfileFacts({ of: profile, name, days }: { of: Profile; name: string; days: number | undefined }) {
  const accounts = Object.entries(profile.accounts);
  return (
    <Facts
      facts={[
        ["Legal name", profile.legal_name ?? <span className="faint">{name}, the tenant's name</span>],
        ["Address", <Lines of={profile.address} />],
        ["Tax id", profile.tax_id ?? <span className="faint">none</span>],
        ["Taxes", <Lines of={profile.taxes.map(taxText)} />],
        [
          "Due after",
          profile.payment_days === null ? (
            <span className="faint">
              {days === undefined ? "the issuer's days" : `${days} days, the issuer's default`}
            </span>
          ) : (
            `${profile.payment_days} days`
          ),
        ],
        [
          "Accounts",
          accounts.length === 0 ? (
            <span className="faint">none</span>
          ) : (
            accounts.map(([connector, account]) => (
              <div key={connector}>
                {connector} <code>{account}</code>
              </div>
            ))
          ),
        ],
      ]}
    />
  );
}

export function taxText(tax: Profile["taxes"][number]): string {
  return `${tax.name} ${tax.rate} %`;
}

/** Each text on a line of its own. */
export function Lines({ of: lines }: { of: readonly string[] }) {
  if (lines.length === 0) return <span className="faint">none</span>;
  return lines.map((line, index) => <div key={index}>{line}</div>);
}
