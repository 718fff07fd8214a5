// JSON whose integers are exact. Amounts are picos and may exceed 2^53, where a JavaScript number is no longer whole:
// such an integer is read as a bigint, every other number as a number, and a bigint is written as the integer it is.

// Unguessable, so that no text of anyone's can be taken for a marked integer.
const MARK = `\u0001${Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) => n.toString(36)).join("")}:`;
// Not the digits behind a point: a fraction may be as long.
const TOKENS = /"(?:[^"\\]|\\.)*"|(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g;

export function parseJson(text: string): unknown {
  let marked = false;
  const ready = text.replace(TOKENS, (token) => {
    if (token.startsWith('"') || Number.isSafeInteger(Number(token))) return token;
    marked = true;
    return JSON.stringify(MARK + token);
  });
  if (!marked) return JSON.parse(text);
  return JSON.parse(ready, (_, value: unknown) =>
    typeof value === "string" && value.startsWith(MARK) ? BigInt(value.slice(MARK.length)) : value,
  );
}

export function writeJson(value: unknown): string {
  const text = JSON.stringify(value, (_, one: unknown) => (typeof one === "bigint" ? MARK + one : one));
  return text.replaceAll(new RegExp(`"${JSON.stringify(MARK).slice(1, -1).replace("\\", "\\\\")}(-?\\d+)"`, "g"), "$1");
}
