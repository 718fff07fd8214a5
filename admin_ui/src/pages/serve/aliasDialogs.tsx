// The dialogs that create, change and remove an alias.
import { api, useGet, useMay, useWrite } from "../../api";
import { ConfirmDialog, Dialog, toast } from "../../kit";
import { AliasForm } from "./aliasForm";
import { ALIASES, type Alias } from "./aliasParts";

export type OpenDialog = { what: "edit" | "remove"; alias: Alias } | "new" | null;

/** `taken`: the names that a new alias cannot have. */
export function AliasDialogs({
  open,
  close,
  taken,
}: {
  open: OpenDialog;
  close: () => void;
  taken: readonly string[];
}) {
  const models = useGet("/v1/admin/models", undefined, { enabled: useMay()("models:read") }).data?.data ?? [];
  const of = (what: "edit" | "remove") => (open !== null && open !== "new" && open.what === what ? open.alias : null);
  const edited = of("edit");
  return (
    <>
      <Dialog
        open={open === "new" || edited !== null}
        onClose={close}
        title={edited === null ? "New alias" : `Edit ${edited.name}`}
        note="Every gateway applies it within a second. Requests in flight stay on their model."
        keep
        wide
      >
        <AliasForm of={edited} models={models} taken={taken} onDone={close} />
      </Dialog>
      <Removal of={of("remove")} close={close} />
    </>
  );
}

/** The buttons of one alias. */
export function AliasActions({ of: alias, open }: { of: Alias; open: (dialog: OpenDialog) => void }) {
  return (
    <span className="row-actions">
      <button
        type="button"
        className="button button-quiet"
        aria-label={`Edit ${alias.name}`}
        onClick={() => open({ what: "edit", alias })}
      >
        Edit
      </button>
      {(alias.source === "row" || alias.active) && (
        <button
          type="button"
          className="button button-quiet"
          aria-label={`Remove ${alias.name}`}
          onClick={() => open({ what: "remove", alias })}
        >
          Remove
        </button>
      )}
    </span>
  );
}

/** An alias set by an operator is removed; an alias of laneway.toml can only be turned off. */
function Removal({ of: alias, close }: { of: Alias | null; close: () => void }) {
  const remove = useWrite(
    (name: string) => api.delete("/v1/admin/aliases/{alias}", { path: { alias: name } }),
    ALIASES,
  );
  const off = useWrite(
    ({ name, source: _, created_at: __, ...rest }: Alias) =>
      api.put("/v1/admin/aliases/{alias}", { path: { alias: name }, body: { ...rest, active: false } }),
    ALIASES,
  );
  const configured = alias?.source === "configuration";
  return (
    <ConfirmDialog
      open={alias !== null}
      onClose={close}
      title={configured ? `Turn ${alias?.name} off?` : `Remove ${alias?.name}?`}
      verb={configured ? "Turn off" : "Remove"}
      action={async () => {
        if (alias === null) return;
        await (configured ? off.mutateAsync(alias) : remove.mutateAsync(alias.name));
        toast(configured ? `${alias.name} is off.` : `${alias.name} is removed.`);
      }}
    >
      {configured
        ? "laneway.toml defines this alias; the console overrides it. New requests to it get 404 until it is edited or removed here."
        : "The definition in laneway.toml applies again; if there is none, new requests to it get 404. Requests in flight finish."}
    </ConfirmDialog>
  );
}
