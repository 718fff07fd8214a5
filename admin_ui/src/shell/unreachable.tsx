// Shown when the console is loaded and the gateway cannot be reached.
import { loadSession } from "../api/session";
import { apiError } from "../api/errors";
import { Problem } from "../kit/parts";

export function Unreachable({ error }: { error: Error }) {
  return (
    <main className="sign-in">
      <h1>Laneway</h1>
      <Problem error={apiError(error)} again={() => void loadSession()} />
    </main>
  );
}
