// Replaces react-remove-scroll, whose <style> element the CSP refuses. A rule in kit.css stops the page from scrolling
// below a dialog instead (see vite.config.ts).
import type { ReactNode } from "react";

export const RemoveScroll = ({ children }: { children: ReactNode }) => children;
