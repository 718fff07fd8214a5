// Tabs whose selection is in the address. Arrow keys move, Enter opens.
import { type KeyboardEvent, type ReactNode, useEffect, useId, useRef } from "react";
import { useView } from "./links";

export interface Tab {
  id: string;
  label: string;
  content: () => ReactNode;
}

export function Tabs({ label, tabs }: { label: string; tabs: readonly Tab[] }) {
  const view = useView({ tab: tabs[0]?.id ?? "" });
  const own = useId();
  const open = tabs.find((tab) => tab.id === view.values.tab) ?? tabs[0]; // a role may not see all tabs
  const list = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // On a phone the list is wider than the screen.
    const [tab, row] = [list.current?.querySelector<HTMLElement>("[aria-selected=true]"), list.current];
    if (tab != null && row != null)
      row.scrollLeft = tab.offsetLeft - row.offsetLeft - (row.clientWidth - tab.clientWidth) / 2;
  }, [open?.id]);
  return (
    <div className="tabs">
      <div ref={list} className="tabs-list" role="tablist" aria-label={label} onKeyDown={moveByArrows}>
        {tabs.map((tab) => (
          <button
            key={tab.id}
            type="button"
            role="tab"
            id={`${own}-${tab.id}`}
            className="tab"
            aria-selected={tab === open}
            {...(tab === open ? { "aria-controls": own } : { tabIndex: -1 })}
            onClick={() => view.set({ tab: tab.id })}
          >
            {tab.label}
          </button>
        ))}
      </div>
      {open !== undefined && (
        <div
          key={open.id}
          className="tab-content"
          role="tabpanel"
          id={own}
          aria-labelledby={`${own}-${open.id}`}
          tabIndex={0}
        >
          {open.content()}
        </div>
      )}
    </div>
  );
}

function moveByArrows(event: KeyboardEvent<HTMLDivElement>): void {
  const all = [...event.currentTarget.querySelectorAll<HTMLElement>("[role=tab]")];
  const at = all.indexOf(event.target as HTMLElement);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1 + all.length, Home: 0, End: all.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  all[to % all.length]?.focus();
}
