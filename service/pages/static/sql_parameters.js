"use strict";
// The parameters of a statement: a field for each $name in it, outside of its texts, names and comments. Values are kept in the address.

const PREFIX = "p.";
const TOKEN = /[eE]'(?:[^'\\]|\\[^]|'')*(?:'|$)|'(?:[^']|'')*(?:'|$)|"(?:[^"]|"")*"|--[^\n]*|\/\*[^]*?(?:\*\/|$)|(\$(?:[A-Za-z_]\w*)?\$)[^]*?(?:\1|$)|\$([A-Za-z_]\w{0,62})(?![\w$])|[A-Za-z_][\w$]*/g;
const PLAIN = /^-?(0|[1-9]\d{0,14})(\.\d{1,12})?$/; // what a number is written as, whichever way one goes
const values = new Map(); // by name, also of what is not in the statement at the moment

/** The names that a statement has parameters of, each once: DuckDB does not tell $A from $a. */
function parameterNames(text) {
  const found = new Map();
  for (const [, , name] of text.matchAll(TOKEN)) if (name && !found.has(name.toLowerCase())) found.set(name.toLowerCase(), name);
  return [...found.values()];
}

/** Shows the fields of a statement, in a place of the page; what has been filled in stays. */
function showParameters(place, text) {
  const fields = place.querySelector("[data-fields]");
  const names = parameterNames(text);
  const shown = [...fields.querySelectorAll("input")].map((one) => one.name.slice(PREFIX.length));
  place.hidden = !names.length;
  if (names.join() === shown.join()) return;
  fields.replaceChildren(...names.map((name) => {
    const field = document.createElement("div");
    const label = document.createElement("label");
    const input = document.createElement("input");
    input.id = `parameter-${name}`;
    input.name = PREFIX + name;
    input.value = values.get(name) ?? "";
    input.placeholder = "NULL";
    input.autocomplete = "off";
    input.spellcheck = false;
    input.setAttribute("aria-describedby", "parameters-help");
    label.htmlFor = input.id;
    label.textContent = `$${name}`;
    field.append(label, input);
    return field;
  }));
}

/** The values of a statement's parameters, as the API takes them: texts, and NULL where a field is empty. */
function parametersOf(text) {
  return Object.fromEntries(parameterNames(text).map((name) => [name, values.get(name) || null]));
}

/** The same values with plain numbers as numbers, and not as texts; nothing where there are none. */
function withNumbers(given) {
  const numbers = Object.entries(given).filter(([, value]) => PLAIN.test(value ?? ""));
  return numbers.length ? { ...given, ...Object.fromEntries(numbers.map(([name, value]) => [name, Number(value)])) } : null;
}

/** Takes over values from an address. */
function takeParameters(query) {
  for (const [key, value] of query) if (key.startsWith(PREFIX)) values.set(key.slice(PREFIX.length), value);
}

document.addEventListener("input", (event) => {
  if (event.target.matches("[data-parameters] input")) values.set(event.target.name.slice(PREFIX.length), event.target.value);
});
takeParameters(new URLSearchParams(location.search));
