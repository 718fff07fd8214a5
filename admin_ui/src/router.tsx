// The router, made from the list of pages.
import { createRootRoute, createRoute, createRouter, redirect } from "@tanstack/react-router";
import { type FunctionComponent, Suspense, lazy } from "react";
import { apiError } from "./api/errors";
import { currentSession, useMay } from "./api/session";
import { EmptyState, PageHead, Problem, Skeleton } from "./kit/parts";
import { PAGES, type Page } from "./routes";
import { Layout } from "./shell/layout";

const root = createRootRoute({ component: Layout, notFoundComponent: NotFound });

function pageRoute(page: Page) {
  return createRoute({ getParentRoute: () => root, path: page.path, component: guarded(page), errorComponent: Broken });
}

/** The page, for who may see it. Its file is fetched when it is first opened. */
function guarded({ title, needs, load }: Page): FunctionComponent {
  const Content = lazy(load);
  return function Guarded() {
    const may = useMay();
    if (needs !== undefined && !may(needs)) {
      return (
        <>
          <PageHead title={title} />
          <EmptyState title="Your role does not see this"><p>It needs <code>{needs}</code>. An owner can make a key that has it.</p></EmptyState>
        </>
      );
    }
    return <Suspense fallback={<Skeleton lines={8} />}><Content /></Suspense>;
  };
}

function NotFound() {
  return (
    <>
      <PageHead title="No such page" />
      <EmptyState title="This address leads nowhere"><p>The navigation has every page there is.</p></EmptyState>
    </>
  );
}

function Broken({ error, reset }: { error: unknown; reset: () => void }) {
  return (
    <>
      <PageHead title="This page broke" />
      <Problem error={apiError(error)} again={reset} />
    </>
  );
}

/** The first page that one may see, where no page is at the root itself. */
const home = createRoute({
  getParentRoute: () => root,
  path: "/",
  beforeLoad: () => {
    const may = currentSession()?.permissions ?? [];
    const first = PAGES.find((page) => page.group !== undefined && (page.needs === undefined || may.includes(page.needs)));
    if (first !== undefined) throw redirect({ to: first.path });
  },
  component: NotFound,
});

const routes = PAGES.map(pageRoute);
export const router = createRouter({
  routeTree: root.addChildren(PAGES.some((page) => page.path === "/") ? routes : [home, ...routes]),
  basepath: "/admin",
  scrollRestoration: true,
  defaultPreload: false,
  // A plain query, as one would write it by hand.
  parseSearch: (text) => Object.fromEntries(new URLSearchParams(text)),
  stringifySearch: (values) => {
    const text = new URLSearchParams(values as Record<string, string>).toString();
    return text === "" ? "" : `?${text}`;
  },
});
