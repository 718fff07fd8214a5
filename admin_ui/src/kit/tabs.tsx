// Tabs whose choice is in the address, so that a link opens the same one.
import { Tabs as Primitive } from "radix-ui";
import type { ReactNode } from "react";
import { useView } from "./links";

export interface Tab {
  id: string;
  label: string;
  content: () => ReactNode;
}

export function Tabs({ label, tabs }: { label: string; tabs: readonly Tab[] }) {
  const view = useView({ tab: tabs[0]?.id ?? "" });
  return (
    <Primitive.Root className="tabs" value={view.values.tab} onValueChange={(tab) => view.set({ tab })} activationMode="manual">
      <Primitive.List className="tabs-list" aria-label={label}>
        {tabs.map((tab) => <Primitive.Trigger key={tab.id} value={tab.id} className="tab">{tab.label}</Primitive.Trigger>)}
      </Primitive.List>
      {tabs.map((tab) => (
        <Primitive.Content key={tab.id} value={tab.id} className="tab-content">{tab.id === view.values.tab && tab.content()}</Primitive.Content>
      ))}
    </Primitive.Root>
  );
}
