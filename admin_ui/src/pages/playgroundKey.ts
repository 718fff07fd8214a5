// The key that the playground calls with: one of the tenant's, made through the keys API, good for less than an hour, known
// to this page alone, and revoked when one leaves.
import { useCallback, useEffect, useRef, useState } from "react";
import { type Session, api } from "../api";
import { csrfToken } from "../api/session";

const KEY_S = 50 * 60;

export interface PlaygroundKey {
  id: string;
  secret: string;
  tenant: string;
  expires_at: number;
}

export function usePlaygroundKey(session: Session) {
  const [key, setKey] = useState<PlaygroundKey | null>(null);
  const held = useRef<PlaygroundKey | null>(null);
  const make = async (tenant: string) => {
    const expires_at = Math.floor(Date.now() / 1000) + KEY_S;
    const name = `playground of ${session.key.name}`.slice(0, 64);
    const made = await api.post("/v1/admin/keys", { body: { tenant, name, kind: "live", expires_at } });
    held.current = { id: made.id, secret: made.secret, tenant, expires_at };
    setKey(held.current);
  };
  const revoke = useCallback(async () => {
    const gone = held.current;
    held.current = null;
    setKey(null);
    if (gone !== null) await api.post("/v1/admin/keys/{key_id}/revoke", { path: { key_id: gone.id } });
  }, []);
  useEffect(() => {
    // The tab is closed: said as it goes, without waiting. Where even that fails the key expires by itself.
    const leaving = () => {
      if (held.current === null) return;
      const path = `/v1/admin/keys/${encodeURIComponent(held.current.id)}/revoke`;
      void fetch(path, { method: "POST", keepalive: true, credentials: "same-origin", headers: { "x-csrf-token": csrfToken() ?? "" } });
      held.current = null;
    };
    addEventListener("pagehide", leaving);
    return () => {
      removeEventListener("pagehide", leaving);
      leaving();
    };
  }, []);
  return { key, make, revoke };
}
