// The router, built from the list of pages.
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

/** The page, if the role has its permission. Its module is loaded when it is first opened. */
function guarded({ title, needs, load }: Page): FunctionComponent {
  const Content = lazy(load);
  return function Guarded() {
    const may = useMay();
    if (needs !== undefined && !may(needs)) {
      return (
        <>
          <PageHead title={title} />
          <EmptyState title="Your role cannot open this page">
            <p>
              It needs the permission <code>{needs}</code>. An owner can create a key that has it.
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
      <PageHead title="Page not found" />
      <EmptyState title="There is no page at this address">
        <p>The navigation lists all pages.</p>
      </EmptyState>
    </>
  );
}

/** Reloads: a page whose file a later build has replaced cannot be loaded otherwise. */
function Broken({ error }: { error: unknown }) {
  return (
    <>
      <PageHead title="This page failed" />
      <Problem error={apiError(error)} again={() => location.reload()} />
    </>
  );
}

export const router = createRouter({
  routeTree: root.addChildren(PAGES.map(pageRoute)),
  basepath: "/admin",
  scrollRestoration: true,
  defaultPreload: false,
  // A different parameter remounts the page, so that no form, dialog or data of the former object remains.
  defaultRemountDeps: ({ params }) => params,
  // A plain query string, without JSON values.
  parseSearch: (text) => Object.fromEntries(new URLSearchParams(text)),
  stringifySearch: (values) => {
    const text = new URLSearchParams(values as Record<string, string>).toString();
    return text === "" ? "" : `?${text}`;
  },
});
