// The beginning: who is signed in is asked, and the console or the sign-in shown.
import { QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { queries } from "./api/query";
import { askSession, useStanding } from "./api/session";
import { router } from "./router";
import { SignInAgain, SignInPage } from "./shell/signIn";
import { Unreachable } from "./shell/unreachable";
import "./style/index.css";

function Console() {
  const { state, session, error } = useStanding();
  if (state === "unknown") return error === null ? null : <Unreachable error={error} />;
  if (session === null) return <SignInPage />;
  return (
    <QueryClientProvider client={queries}>
      <RouterProvider router={router} />
      <SignInAgain open={state === "expired"} />
    </QueryClientProvider>
  );
}

void askSession();
createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <Console />
  </StrictMode>,
);
