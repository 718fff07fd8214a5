// What a person chose of the console's look, kept in this browser: theme, and whose clock times are shown by.
import { useSyncExternalStore } from "react";

export type Theme = "system" | "light" | "dark";
export type Zone = "utc" | "local";
interface Settings {
  theme: Theme;
  zone: Zone;
}

const watchers = new Set<() => void>();
let settings: Settings = { theme: read("theme", "system"), zone: read("zone", "utc") };

function read<T extends string>(name: string, otherwise: T): T {
  try {
    return (localStorage.getItem(`laneway.${name}`) as T | null) ?? otherwise;
  } catch {
    return otherwise; // storage is switched off: the choice lasts as long as the page
  }
}

export function setSetting<N extends keyof Settings>(name: N, value: Settings[N]): void {
  settings = { ...settings, [name]: value };
  try {
    localStorage.setItem(`laneway.${name}`, value);
  } catch {
    // As above.
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

/** The theme that is seen. */
export function useShade(): "light" | "dark" {
  return useSyncExternalStore(watch, () => {
    if (settings.theme !== "system") return settings.theme;
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  });
}

export function useZone(): Zone {
  return useSyncExternalStore(watch, () => settings.zone);
}
