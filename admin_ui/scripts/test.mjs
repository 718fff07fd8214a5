// npm test: bundles every src/**/*.test.ts with the builder that is here anyway, and runs them with node's own runner.
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { build } from "vite";

const root = new URL("..", import.meta.url).pathname;
const tests = readdirSync(join(root, "src"), { recursive: true }).filter((name) => /\.test\.tsx?$/.test(name));
const outDir = mkdtempSync(join(tmpdir(), "laneway-console-"));
const input = Object.fromEntries(
  tests.map((name) => [name.replaceAll("/", "_").replace(/\.tsx?$/, ""), join(root, "src", name)]),
);
await build({
  root,
  logLevel: "error",
  build: { ssr: true, outDir, emptyOutDir: false, copyPublicDir: false, rolldownOptions: { input } },
});
const files = Object.keys(input).map((name) => join(outDir, `${name}.js`));
const { status } = spawnSync(process.execPath, ["--test", ...files], { stdio: "inherit" });
rmSync(outDir, { recursive: true });
process.exit(status ?? 1);
