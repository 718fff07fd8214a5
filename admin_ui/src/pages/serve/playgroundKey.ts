// The playground's key: a key of the tenant, valid for less than an hour, kept only in this page's memory, and revoked
// when the page is left.
import { useCallback, useEffect, useRef, useState } from "react";
import { type Session, api, apiError } from "../../api";
import { csrfToken } from "../../api/session";
import { moment, toast } from "../../kit";

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
  const gone = useRef(false);
  const make = async (tenant: string) => {
    const expires_at = Math.floor(Date.now() / 1000) + KEY_S;
    const name = `playground of ${session.person?.name ?? session.key?.name}`.slice(0, 64);
    const made = await api.post("/v1/admin/keys", { body: { tenant, name, kind: "live", expires_at } });
    held.current = { id: made.id, secret: made.secret, tenant, expires_at };
    if (gone.current)
      leave(held); // the page was left while the key was created
    else setKey(held.current);
  };
  /** Drops the key in any case; a failed revocation is reported. */
  const revoke = useCallback(async () => {
    const ended = held.current;
    held.current = null;
    setKey(null);
    if (ended === null) return;
    try {
      await api.post("/v1/admin/keys/{key_id}/revoke", { path: { key_id: ended.id } });
      toast("The key is revoked.");
    } catch (error) {
      toast(
        `The key ${ended.id} could not be revoked, and works until ${moment(ended.expires_at, "utc", "minute")}: ${apiError(error).message}`,
        true,
      );
    }
  }, []);
  useEffect(() => {
    gone.current = false;
    const leaving = () => leave(held);
    addEventListener("pagehide", leaving);
    return () => {
      removeEventListener("pagehide", leaving);
      gone.current = true;
      leaving();
    };
  }, []);
  return { key, make, revoke };
}

/** Revokes the key while the tab closes, without waiting for the response. If that fails, the key expires. */
function leave(held: { current: PlaygroundKey | null }): void {
  if (held.current === null) return;
  const path = `/v1/admin/keys/${encodeURIComponent(held.current.id)}/revoke`;
  void fetch(path, {
    method: "POST",
    keepalive: true,
    credentials: "same-origin",
    headers: { "x-csrf-token": csrfToken() ?? "" },
  }).catch(() => undefined);
  held.current = null;
}
