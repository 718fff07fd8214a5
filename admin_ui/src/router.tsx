// The router, made from the list of pages.
import { createRootRoute, createRoute, createRouter } from "@tanstack/react-router";
import { type FunctionComponent, Suspense, lazy } from "react";
import { apiError } from "./api/errors";
import { useMay } from "./api/session";
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
          <EmptyState title="Your role does not see this">
            <p>
              It needs <code>{needs}</code>. An owner can make a key that has it.
            </p>
          </EmptyState>
        </>
      );
    }
    return (
      <Suspense fallback={<Skeleton lines={8} />}>
        <Content />
      </Suspense>
    );
  };
}

function NotFound() {
  return (
    <>
      <PageHead title="No such page" />
      <EmptyState title="This address leads nowhere">
        <p>The navigation has every page there is.</p>
      </EmptyState>
    </>
  );
}

/** Loaded anew: a page whose file a later build has replaced is not to be had otherwise. */
function Broken({ error }: { error: unknown }) {
  return (
    <>
      <PageHead title="This page broke" />
      <Problem error={apiError(error)} again={() => location.reload()} />
    </>
  );
}

export const router = createRouter({
  routeTree: root.addChildren(PAGES.map(pageRoute)),
  basepath: "/admin",
  scrollRestoration: true,
  defaultPreload: false,
  // Another object is another page: no form, dialog or answer of the one before stays on it.
  defaultRemountDeps: ({ params }) => params,
  // A plain query, as one would write it by hand.
  parseSearch: (text) => Object.fromEntries(new URLSearchParams(text)),
  stringifySearch: (values) => {
    const text = new URLSearchParams(values as Record<string, string>).toString();
    return text === "" ? "" : `?${text}`;
  },
});
