// The frame of every page: navigation, session, settings, command palette and toasts.
import { Outlet, useRouterState } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { nameOf, signOut, useSession } from "../api/session";
import { Toasts } from "../kit/dialog";
import { Link } from "../kit/links";
import { type Theme, setSetting, useTheme, useZone } from "../kit/settings";
import { GROUPS, type Page } from "../routes";
import { Palette, usePages } from "./palette";
import { Mark } from "./signIn";

const MAC = /Mac|iPhone|iPad/.test(navigator.userAgent);

export function Layout() {
  const [drawer, setDrawer] = useState(false);
  const [palette, setPalette] = useState(false);
  const path = useRouterState({ select: (state) => state.location.pathname });
  useEffect(() => setDrawer(false), [path]);
  useEffect(() => {
    const key = (event: KeyboardEvent) => {
      if (event.key === undefined) return; // a browser's autofill sends a keydown without a key
      const typing = (event.target as HTMLElement).closest("input, textarea, select, [contenteditable]") !== null;
      if (event.key.toLowerCase() === "k" && (event.metaKey || event.ctrlKey)) setPalette((now) => !now);
      else if (event.key === "/" && !typing && document.querySelector("[role=dialog]") === null) {
        const search = document.querySelector<HTMLInputElement>("[data-search]");
        if (search === null) setPalette(true);
        else search.focus();
      } else if (event.key === "Escape") {
        setDrawer(false);
        return;
      } else return;
      event.preventDefault();
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
  return (
    <div className={drawer ? "shell drawer-open" : "shell"}>
      <a className="skip" href="#content">
        Skip to content
      </a>
      <Side path={path} />
      <button
        type="button"
        className="drawer-shade"
        aria-label="Close the navigation"
        onClick={() => setDrawer(false)}
        hidden={!drawer}
      />
      <div className="right">
        <header className="top">
          <button
            type="button"
            className="button button-quiet drawer-button"
            aria-expanded={drawer}
            aria-controls="navigation"
            onClick={() => setDrawer(!drawer)}
          >
            <span aria-hidden="true">☰</span>
            <span className="sr-only">Navigation</span>
          </button>
          <button type="button" className="button palette-button" onClick={() => setPalette(true)}>
            <span>Go to…</span>
            <kbd>{MAC ? "⌘K" : "Ctrl K"}</kbd>
          </button>
          <Switches />
          <Who />
        </header>
        <main id="content" tabIndex={-1}>
          <Outlet />
        </main>
      </div>
      <Palette open={palette} onClose={() => setPalette(false)} />
      <Toasts />
    </div>
  );
}

function Side({ path }: { path: string }) {
  const pages = usePages();
  const here = (page: Page) =>
    page.path === "/" ? path === "/" : path === page.path || path.startsWith(`${page.path}/`);
  return (
    <nav className="side" id="navigation" aria-label="Pages">
      <Link to="/" className="brand">
        <Mark />
        Laneway
      </Link>
      {GROUPS.map((group) => {
        const inside = pages.filter((page) => page.group === group);
        if (inside.length === 0) return null;
        return (
          <div key={group} className="side-group" role="group" aria-label={group}>
            <div className="side-title" aria-hidden="true">
              {group}
            </div>
            {inside.map((page) => (
              <Link key={page.path} to={page.path} className="side-link" aria-current={here(page) ? "page" : undefined}>
                {page.title}
              </Link>
            ))}
          </div>
        );
      })}
    </nav>
  );
}

function Switches() {
  const theme = useTheme();
  const zone = useZone();
  return (
    <div className="switches">
      <label>
        <span className="sr-only">Clock</span>
        <select value={zone} onChange={(event) => setSetting("zone", event.target.value as "utc" | "local")}>
          <option value="utc">UTC</option>
          <option value="local">Local time</option>
        </select>
      </label>
      <label>
        <span className="sr-only">Theme</span>
        <select value={theme} onChange={(event) => setSetting("theme", event.target.value as Theme)}>
          <option value="system">System</option>
          <option value="light">Light</option>
          <option value="dark">Dark</option>
        </select>
      </label>
    </div>
  );
}

function Who() {
  const session = useSession();
  const { role, tenant } = session;
  return (
    <div className="who">
      <span className="who-words">
        <b>{role.replace("_", " ")}</b>
        {tenant !== null && <> of {tenant.slug}</>}
        <span className="faint"> {nameOf(session)}</span>
      </span>
      <button type="button" className="button button-quiet" onClick={() => void signOut()}>
        Sign out
      </button>
    </div>
  );
}
