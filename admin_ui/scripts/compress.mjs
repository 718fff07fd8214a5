// A .gz and a .br beside every text file of dist/, made once at build so that the gateway compresses nothing.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

const dist = new URL("../dist/", import.meta.url);
let script = 0;
for (const name of readdirSync(dist, { recursive: true })) {
  if (!/\.(js|css|html|svg|json)$/.test(name)) continue;
  const file = new URL(name, dist);
  const bytes = readFileSync(file);
  const gz = gzipSync(bytes, { level: 9 });
  const br = brotliCompressSync(bytes, { params: { [constants.BROTLI_PARAM_QUALITY]: 11 } });
  if (name.endsWith(".js")) script += gz.length;
  writeFileSync(`${file.pathname}.gz`, gz);
  writeFileSync(`${file.pathname}.br`, br);
}
console.log(`all scripts of all pages, gzipped: ${Math.round(script / 1024)} KB`);
