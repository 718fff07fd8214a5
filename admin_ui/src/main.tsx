// Entry point: loads the session and shows the console or the sign-in.
import { QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { queries } from "./api/query";
import { loadSession, useSessionState } from "./api/session";
import { router } from "./router";
import { SignInAgain, SignInPage } from "./shell/signIn";
import { Unreachable } from "./shell/unreachable";
import "./style/index.css";

function Console() {
  const { state, session, error } = useSessionState();
  if (state === "unknown") return error === null ? null : <Unreachable error={error} />;
  if (session === null) return <SignInPage />;
  return (
    <QueryClientProvider client={queries}>
      <RouterProvider router={router} />
      <SignInAgain open={state === "expired"} />
    </QueryClientProvider>
  );
}

void loadSession();
createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <Console />
  </StrictMode>,
);
