// Evaluates expressions with GitHub's own evaluator. Each line in: {"contexts": …, "expressions": […]}; each line out: their
// strings, or {"error": …}.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const { data, Evaluator, Lexer, Parser } = await import(pathToFileURL(process.argv[2]).href);
const plain = (value) => {
  if (value === null) return new data.Null();
  if (typeof value === "string") return new data.StringData(value);
  if (typeof value === "boolean") return new data.BooleanData(value);
  if (typeof value === "number") return new data.NumberData(value);
  return new data.Dictionary(...Object.entries(value).map(([key, inner]) => ({ key, value: plain(inner) })));
};
const always = { name: "always", minArgs: 0, maxArgs: 0, call: () => new data.BooleanData(true) };
const answer = (given) => {
  const contexts = plain(given.contexts);
  const names = Object.keys(given.contexts);
  return given.expressions.map((text) => {
    const tree = new Parser(new Lexer(text).lex().tokens, names, [always]).parse();
    return new Evaluator(tree, contexts, new Map([["always", always]])).evaluate().coerceString();
  });
};
for await (const line of createInterface({ input: process.stdin })) {
  let said;
  try {
    said = answer(JSON.parse(line));
  } catch (error) {
    said = { error: String(error) };
  }
  process.stdout.write(JSON.stringify(said) + "\n");
}
