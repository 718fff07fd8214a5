// JSON as an operator types it and as a model writes it: where a text stops being JSON, and the same JSON indented.

const BLANK = /[ \t\r\n]*/y;
const TOKEN =
  /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])|(?:true|false|null)\b|[{}[\],:]/y; // eslint-disable-line no-control-regex -- JSON forbids them inside strings
const FOUND_CHARS_MAX = 20;

/** What may follow: `key` and `item` behind a comma, the two `first…` behind an opening bracket. */
type State = "value" | "firstKey" | "key" | "colon" | "firstItem" | "item" | "after" | "end";
const EXPECTED: Record<State, string> = {
  value: "a value",
  firstKey: "a name in quotation marks or }",
  key: "a name in quotation marks",
  colon: "a colon",
  firstItem: "a value or ]",
  item: "a value",
  after: "a comma or the closing bracket",
  end: "the end",
};

/** The first fault in a text as a sentence with its line and column (from 1); null for JSON. */
export function jsonFault(text: string): string | null {
  const read = tokens(text);
  return "fault" in read ? read.fault : null;
}

/** The same tokens, indented; null for a text that is not JSON. Numbers and escapes keep their form. */
export function indented(text: string): string | null {
  const read = tokens(text);
  if ("fault" in read) return null;
  let [out, depth, before] = ["", 0, ""];
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const token of read.tokens) {
    const opened = before === "{" || before === "[";
    if (token === "}" || token === "]") {
      depth--;
      out += opened ? token : line() + token;
    } else {
      if (opened || before === ",") out += line();
      out += token === ":" ? ": " : token;
      if (token === "{" || token === "[") depth++;
    }
    before = token;
  }
  return out;
}

function tokens(text: string): { tokens: string[] } | { fault: string } {
  const found: string[] = [];
  const open: string[] = [];
  let state: State = "value";
  for (let at = 0; ;) {
    BLANK.lastIndex = at;
    at += BLANK.exec(text)?.[0].length ?? 0;
    if (at === text.length) return state === "end" ? { tokens: found } : { fault: faultAt(text, at, state) };
    TOKEN.lastIndex = at;
    const token = TOKEN.exec(text)?.[0];
    const next: State | null = token === undefined ? null : after(token, state, open);
    if (token === undefined || next === null) return { fault: faultAt(text, at, state) };
    found.push(token);
    state = next;
    at += token.length;
  }
}

/** The state behind `token`; null where it may not stand. `open`: the open brackets, changed in place. */
function after(token: string, state: State, open: string[]): State | null {
  const closed = (): State => (open.pop(), open.length === 0 ? "end" : "after");
  const inside = open.at(-1);
  switch (token[0]) {
    case "{":
    case "[":
      if (!takesValue(state)) return null;
      open.push(token);
      return token === "{" ? "firstKey" : "firstItem";
    case "}":
      return inside === "{" && (state === "firstKey" || state === "after") ? closed() : null;
    case "]":
      return inside === "[" && (state === "firstItem" || state === "after") ? closed() : null;
    case ",":
      return state === "after" ? (inside === "{" ? "key" : "item") : null;
    case ":":
      return state === "colon" ? "value" : null;
    case '"':
      if (state === "firstKey" || state === "key") return "colon";
  }
  return takesValue(state) ? (open.length === 0 ? "end" : "after") : null;
}

function takesValue(state: State): boolean {
  return state === "value" || state === "firstItem" || state === "item";
}

function faultAt(text: string, at: number, state: State): string {
  const lines = text.slice(0, at).split("\n");
  const where = `Line ${lines.length}, column ${(lines.at(-1)?.length ?? 0) + 1}`;
  const found = /^(?:"[^"\n]*"?|[\w.+-]+|.)/su.exec(text.slice(at, at + FOUND_CHARS_MAX))?.[0];
  return `${where}: expected ${EXPECTED[state]}, found ${found ?? "the end of the text"}.`;
}
