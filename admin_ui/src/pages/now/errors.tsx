// Errors: refused and failed requests over time, of all tenants, one tenant or one key.
import { Link, LookupFilter, PageHead, Section, TenantLookup, useView } from "../../kit";
import { ErrorRates } from "../parts/errorRates";
import { KeyLookup } from "../parts/names";

export default function Errors() {
  const view = useView({ tenant: "", key_id: "" });
  const { tenant, key_id } = view.values;
  return (
    <>
      <PageHead
        title="Errors"
        note="Refused: the caller was over a limit, or its request was wrong. Failed: a gateway, an engine or the database could not serve it."
      />
      <div className="table-bar">
        <LookupFilter label="Tenant">
          <TenantLookup value={tenant} onChange={(one) => view.set({ tenant: one, key_id: "" })} />
        </LookupFilter>
        <LookupFilter label="Key">
          <KeyLookup
            {...(tenant === "" ? {} : { tenant })}
            value={key_id}
            onChange={(one) => view.set({ key_id: one })}
          />
        </LookupFilter>
      </div>
      <Section
        title="Error rates"
        actions={
          <Link to="/requests" query={{ outcome: "failed", tenant, key_id }}>
            View failed requests
          </Link>
        }
      >
        <ErrorRates tenant={tenant} keyId={key_id} key={`${tenant}/${key_id}`} />
      </Section>
    </>
  );
}
