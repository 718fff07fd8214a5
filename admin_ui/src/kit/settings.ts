// Settings kept in this browser: theme, and UTC or local time.
import { createContext, use, useSyncExternalStore } from "react";

export type Theme = "system" | "light" | "dark";
/** "utc", "local" (the browser's), or an IANA time zone such as America/New_York. */
export type Zone = string;
interface Settings {
  theme: Theme;
  zone: "utc" | "local";
}

/** The zone of a part of a page, in place of the setting. */
export const ZoneContext = createContext<Zone | null>(null);

const watchers = new Set<() => void>();
let settings: Settings = { theme: read("theme", "system"), zone: read("zone", "utc") };

function read<T extends string>(name: string, otherwise: T): T {
  try {
    return (localStorage.getItem(`laneway.${name}`) as T | null) ?? otherwise;
  } catch {
    return otherwise; // storage is disabled: the setting lasts until the page is closed
  }
}

export function setSetting<N extends keyof Settings>(name: N, value: Settings[N]): void {
  settings = { ...settings, [name]: value };
  try {
    localStorage.setItem(`laneway.${name}`, value);
  } catch {
    // Storage is disabled: the setting lasts until the page is closed.
  }
  if (name === "theme") {
    if (value === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = value;
  }
  for (const watcher of watchers) watcher();
}

function watch(watcher: () => void): () => void {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  watchers.add(watcher);
  dark.addEventListener("change", watcher);
  return () => {
    watchers.delete(watcher);
    dark.removeEventListener("change", watcher);
  };
}

export function useTheme(): Theme {
  return useSyncExternalStore(watch, () => settings.theme);
}

/** The theme in use: the setting, or the system's. */
export function useShade(): "light" | "dark" {
  return useSyncExternalStore(watch, () => {
    if (settings.theme !== "system") return settings.theme;
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  });
}

export function useZone(): Zone {
  const own = use(ZoneContext);
  const set = useSyncExternalStore(watch, () => settings.zone);
  return own ?? set;
}
