// Evaluates expressions with GitHub's own evaluator. Standard input: {"contexts": …, "expressions": […]}; output: their strings.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { data, Evaluator, Lexer, Parser } = await import(pathToFileURL(process.argv[2]).href);
const given = JSON.parse(readFileSync(0, "utf8"));
const plain = (value) => {
  if (value === null) return new data.Null();
  if (typeof value === "string") return new data.StringData(value);
  if (typeof value === "boolean") return new data.BooleanData(value);
  if (typeof value === "number") return new data.NumberData(value);
  return new data.Dictionary(...Object.entries(value).map(([key, inner]) => ({ key, value: plain(inner) })));
};
const contexts = plain(given.contexts);
const names = Object.keys(given.contexts);
const always = { name: "always", minArgs: 0, maxArgs: 0, call: () => new data.BooleanData(true) };
const results = given.expressions.map((text) => {
  const tree = new Parser(new Lexer(text).lex().tokens, names, [always]).parse();
  return new Evaluator(tree, contexts, new Map([["always", always]])).evaluate().coerceString();
});
process.stdout.write(JSON.stringify(results));
