// src/api/schema.d.ts from the gateway's OpenAPI: npm run types [-- FILE [OUT]]. Without a file it asks `python -m
// gateway.openapi` of the virtual environment in ../.venv, or of $PYTHON.
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import openapiTS, { astToString } from "openapi-typescript";
import ts from "typescript";

const root = new URL("../../", import.meta.url);
const venv = new URL(".venv/bin/python", root).pathname;
const python = process.env.PYTHON ?? (existsSync(venv) ? venv : "python3");
const text = process.argv[2]
  ? readFileSync(process.argv[2], "utf8")
  : execFileSync(python, ["-m", "gateway.openapi"], { cwd: root, encoding: "utf8", maxBuffer: 1 << 26 });

// Amounts of money may exceed 2^53: the client reads such integers as bigint, so their type must say so.
const AMOUNT = /(_picos|_amount)$|^(amount|cost|used|held|left|picos)$/;
const exact = ts.factory.createUnionTypeNode([
  ts.factory.createKeywordTypeNode(ts.SyntaxKind.NumberKeyword),
  ts.factory.createKeywordTypeNode(ts.SyntaxKind.BigIntKeyword),
]);
const ast = await openapiTS(JSON.parse(text), {
  transform(schema, { path }) {
    const name = path?.split("/").at(-1) ?? "";
    if (schema.type === "integer" && AMOUNT.test(name)) return exact;
  },
});
const head = "// Generated from the gateway's OpenAPI by `npm run types`; not edited by hand.\n";
writeFileSync(process.argv[3] ?? new URL("../src/api/schema.d.ts", import.meta.url), head + astToString(ast));
