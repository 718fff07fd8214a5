// In place of react-remove-scroll, which keeps the page from scrolling below a dialog with listeners and a <style> element
// that the CSP refuses: kit.css does it with a rule (see vite.config.ts).
import type { ReactNode } from "react";

export const RemoveScroll = ({ children }: { children: ReactNode }) => children;
