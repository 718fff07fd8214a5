// The command palette (⌘K): pages and settings by typing.
import { type KeyboardEvent, useState } from "react";
import { signOut, useMay } from "../api/session";
import { Dialog } from "../kit/dialog";
import { useGo } from "../kit/links";
import { setSetting } from "../kit/settings";
import { PAGES, type Page } from "../routes";

interface Command {
  name: string;
  note: string;
  run: () => void;
}

/** The pages that the role may open. */
export function usePages(): Page[] {
  const may = useMay();
  return PAGES.filter((page) => page.group !== undefined && (page.needs === undefined || may(page.needs)));
}

export function Palette({ open, onClose }: { open: boolean; onClose: () => void }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const pages = usePages();
  const go = useGo();
  const all: Command[] = [
    ...pages.map((page) => ({ name: page.title, note: page.group ?? "", run: () => go(page.path) })),
    ...(["dark", "light", "system"] as const).map((theme) => ({
      name: `Theme: ${theme}`,
      note: "Appearance",
      run: () => setSetting("theme", theme),
    })),
    { name: "Times in UTC", note: "Appearance", run: () => setSetting("zone", "utc") },
    { name: "Times in local time", note: "Appearance", run: () => setSetting("zone", "local") },
    { name: "Sign out", note: "Session", run: () => void signOut() },
  ];
  const found = all.filter((one) => `${one.name} ${one.note}`.toLowerCase().includes(text.toLowerCase().trim()));
  const close = () => {
    setText("");
    setAt(0);
    onClose();
  };
  const run = (command: Command | undefined) => {
    if (command === undefined) return;
    close();
    command.run();
  };
  const key = (event: KeyboardEvent) => {
    if (event.key === "Enter") run(found[at]);
    else if (event.key === "ArrowDown") setAt(Math.min(found.length - 1, at + 1));
    else if (event.key === "ArrowUp") setAt(Math.max(0, at - 1));
    else return;
    event.preventDefault();
  };
  return (
    <Dialog open={open} onClose={close} title="Go to">
      <input
        className="search"
        role="combobox"
        aria-label="Page or command"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={found[at] === undefined ? undefined : `palette-${at}`}
        placeholder="A page or a command…"
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          setAt(0);
        }}
        onKeyDown={key}
        autoFocus
      />
      <ul id="palette-list" role="listbox" aria-label="Results" className="palette-list">
        {found.map((one, index) => (
          <li
            key={one.name}
            id={`palette-${index}`}
            role="option"
            aria-selected={index === at}
            onClick={() => run(one)}
          >
            <span>{one.name}</span>
            <span className="faint">{one.note}</span>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}
