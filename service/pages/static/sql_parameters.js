"use strict";
// The parameters of a statement: a field for each $name outside of strings, quoted names and comments. The address keeps the values.

const PREFIX = "p.";
const TOKEN = /[eE]'(?:[^'\\]|\\[^]|'')*(?:'|$)|'(?:[^']|'')*(?:'|$)|"(?:[^"]|"")*"|--[^\n]*|\/\*[^]*?(?:\*\/|$)|(\$(?:[A-Za-z_]\w*)?\$)[^]*?(?:\1|$)|\$([A-Za-z_]\w{0,62})(?![\w$])|[A-Za-z_][\w$]*/g;
const PLAIN_NUMBER = /^-?(0|[1-9]\d{0,14})(\.\d{1,12})?$/; // a number that converts to text and back unchanged
const values = new Map(); // by name; values of parameters that are currently not in the statement are kept

/** Returns the distinct parameter names of a statement. DuckDB ignores their case. */
function parameterNames(text) {
  const names = new Map();
  for (const [, , name] of text.matchAll(TOKEN)) if (name && !names.has(name.toLowerCase())) names.set(name.toLowerCase(), name);
  return [...names.values()];
}

/** Shows a field for each parameter of a statement, with the values kept so far. */
function showParameters(container, text) {
  const fields = container.querySelector("[data-fields]");
  const names = parameterNames(text);
  const shown = [...fields.querySelectorAll("input")].map((input) => input.name.slice(PREFIX.length));
  container.hidden = !names.length;
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

/** Returns the values of a statement's parameters for the API: texts, or null for empty fields. */
function readParameters(text) {
  return Object.fromEntries(parameterNames(text).map((name) => [name, values.get(name) || null]));
}

/** Returns the parameters with plain numbers as numbers instead of texts; null if none is a number. */
function withNumbers(parameters) {
  const numbers = Object.entries(parameters).filter(([, value]) => PLAIN_NUMBER.test(value ?? ""));
  return numbers.length ? { ...parameters, ...Object.fromEntries(numbers.map(([name, value]) => [name, Number(value)])) } : null;
}

/** Reads the values from an address. */
function takeParameters(query) {
  for (const [key, value] of query) if (key.startsWith(PREFIX)) values.set(key.slice(PREFIX.length), value);
}

document.addEventListener("input", (event) => {
  if (event.target.matches("[data-parameters] input")) values.set(event.target.name.slice(PREFIX.length), event.target.value);
});
takeParameters(new URLSearchParams(location.search));
