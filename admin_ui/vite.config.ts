// How the console is built: static files under /admin/, which the gateway serves under a strict CSP.
import { fileURLToPath } from "node:url";
import react from "@vitejs/plugin-react";
import { type ProxyOptions, defineConfig } from "vite";

const gateway = process.env.LANEWAY_URL ?? "http://127.0.0.1:8080";
// The gateway takes a write by cookie from its own pages alone: to it, this server's are.
const proxied: ProxyOptions = { target: gateway, changeOrigin: true, headers: { origin: new URL(gateway).origin } };

export default defineConfig({
  base: "/admin/",
  plugins: [react()],
  resolve: {
    // Radix locks the page's scroll with a <style> element, which style-src 'self' refuses; our stylesheet locks it.
    alias: { "react-remove-scroll": fileURLToPath(new URL("src/kit/noScrollLock.tsx", import.meta.url)) },
  },
  // Nothing inlined: the CSP has no data: for scripts or styles.
  build: { target: "es2022", assetsInlineLimit: 0, sourcemap: false, modulePreload: { polyfill: false } },
  server: { proxy: { "/v1": proxied, "/health": proxied, "/schema": proxied } },
});
