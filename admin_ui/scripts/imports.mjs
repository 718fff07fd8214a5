// The direction of imports in src/: fails on an import against it, and on a circle of files. Part of `npm run check`.
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import ts from "typescript";

const src = new URL("../src/", import.meta.url).pathname;

/** Which folders the files of a folder may import from, besides their own. "." is src/ itself. */
const MAY_IMPORT = {
  api: [],
  style: [],
  kit: ["api"],
  "pages/parts": ["api", "kit"],
  "pages/money": ["api", "kit", "pages/parts"],
  "pages/people": ["api", "kit", "pages/parts", "pages/money"],
  "pages/serve": ["api", "kit", "pages/parts"],
  "pages/now": ["api", "kit", "pages/parts", "pages/serve"],
  "pages/record": ["api", "kit", "pages/parts"],
  shell: ["api", "kit", "."],
  ".": ["api", "kit", "shell", "style", "pages/now", "pages/serve", "pages/people", "pages/money", "pages/record"],
};

const found = (path) =>
  [path, `${path}.ts`, `${path}.tsx`, `${path}/index.ts`].find(
    (one) => /\.\w+$/.test(one) && existsSync(join(src, one)),
  );

/** What a file imports from src/, and whether only when it is first needed (`import()`). */
function importsOf(file) {
  const text = readFileSync(join(src, file), "utf8");
  return ts.preProcessFile(text).importedFiles.flatMap(({ fileName, pos }) => {
    if (!fileName.startsWith(".")) return [];
    const target = found(normalize(join(dirname(file), fileName.replace(/\?\w+$/, ""))));
    return target === undefined ? [] : [{ target, late: /import\(\s*$/.test(text.slice(0, pos)) }];
  });
}

const files = readdirSync(src, { recursive: true }).filter((name) => /\.tsx?$/.test(name) && !name.endsWith(".d.ts"));
const imports = new Map(files.map((file) => [file, importsOf(file)]));
const faults = [];

for (const [file, targets] of imports) {
  const folder = dirname(file);
  const allowed = MAY_IMPORT[folder];
  if (allowed === undefined) faults.push(`${file}: the folder ${folder} is not listed in scripts/imports.mjs`);
  for (const { target } of targets) {
    const other = dirname(target);
    if (other !== folder && allowed?.includes(other) === false)
      faults.push(`${file} imports ${target}: against the direction`);
  }
}

const done = new Set();
function walk(file, path) {
  if (path.includes(file)) {
    faults.push(`a circle of imports: ${[...path.slice(path.indexOf(file)), file].join(" → ")}`);
    return;
  }
  if (done.has(file)) return;
  // The list of pages loads each page late, and a page may name another page's address: no circle.
  for (const { target, late } of imports.get(file) ?? []) if (!late) walk(target, [...path, file]);
  done.add(file);
}
files.forEach((file) => walk(file, []));

if (faults.length > 0) {
  console.error(faults.join("\n"));
  process.exit(1);
}
