// The rules of `npm run lint`. Layout is prettier's: eslint-config-prettier turns off the rules that would disagree.
import js from "@eslint/js";
import prettier from "eslint-config-prettier";
import reactHooks from "eslint-plugin-react-hooks";
import { defineConfig, globalIgnores } from "eslint/config";
import tseslint from "typescript-eslint";

const NODE = { URL: "readonly", console: "readonly", process: "readonly" };
const BROWSER = { document: "readonly", localStorage: "readonly" };

export default defineConfig([
  globalIgnores(["dist/", "src/api/schema.d.ts"]),
  js.configs.recommended,
  { files: ["scripts/**"], languageOptions: { globals: NODE } },
  { files: ["public/**"], languageOptions: { globals: BROWSER } },
  {
    files: ["**/*.{ts,tsx}"],
    extends: [tseslint.configs.recommendedTypeChecked, reactHooks.configs.flat.recommended],
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      "@typescript-eslint/no-unused-vars": ["error", { argsIgnorePattern: "^_", varsIgnorePattern: "^_" }],
      // An async function without await still turns what it throws into a rejection.
      "@typescript-eslint/require-await": "off",
      "react-hooks/exhaustive-deps": "error",
      // These three serve React Compiler, which the console does not use.
      "react-hooks/purity": "off",
      "react-hooks/refs": "off",
      "react-hooks/set-state-in-effect": "off",
    },
  },
  {
    files: ["**/*.test.ts"],
    // node:test awaits the promises of test() itself; amounts beyond 2^53 are what some tests are about.
    rules: { "@typescript-eslint/no-floating-promises": "off", "no-loss-of-precision": "off" },
  },
  prettier,
]);
