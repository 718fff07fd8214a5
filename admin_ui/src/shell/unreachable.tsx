// The console is there and its gateway is not: said once, with a way to try again.
import { askSession } from "../api/session";
import { apiError } from "../api/errors";
import { Problem } from "../kit/parts";

export function Unreachable({ error }: { error: Error }) {
  return (
    <main className="sign-in">
      <h1>Laneway</h1>
      <Problem error={apiError(error)} again={() => void askSession()} />
    </main>
  );
}
