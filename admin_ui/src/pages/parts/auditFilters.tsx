// Choices of the audit log's filters: actions, and the keys and people that act.
import { useList, useMay, useSession } from "../../api";
import { ChoiceLookup, choicesOf } from "../../kit";
import { AUDIT_ACTIONS } from "./auditActions";

interface Control {
  value: string;
  onChange: (value: string) => void;
}

export function ActionLookup(control: Control) {
  return <ChoiceLookup {...control} label="Action" placeholder="All actions" choices={choicesOf(AUDIT_ACTIONS)} />;
}

const FIRST = 500;
/** The actor of a refused sign-in without a known key. */
const UNKNOWN = { value: "unknown", said: "unknown", note: "refused sign-ins" };

/** Finds an admin key or a person; any other actor, such as `cli:root`, is typed. */
export function ActorLookup(control: Control) {
  const may = useMay();
  const keys = useList(
    "/v1/admin/keys",
    { query: { kind: "admin" } },
    { enabled: may("keys:read"), limit: FIRST },
  ).rows;
  const operator = useSession().tenant === null; // people are listed for operators alone
  const people = useList("/v1/admin/people", {}, { enabled: operator && may("people:read"), limit: FIRST }).rows;
  const choices = [
    ...keys.map((key) => ({ value: key.id, said: `${key.name} …${key.last4}`, note: "key" })),
    ...people.map((person) => ({ value: person.id, said: person.name ?? person.id, note: person.email ?? "person" })),
    UNKNOWN,
  ];
  return <ChoiceLookup {...control} label="By" placeholder="All actors" choices={choices} free="another actor" />;
}
