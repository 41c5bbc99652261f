/** Texts within limits, each cut shown as Driftline's import shows it. */

/** Levels of nesting that the server takes; what an event wraps around a value needs some of them. */
export const MAX_DEPTH = 28;

/** The text, cut at `limit` characters (code points), with the number of those left out. */
export function cut(text, limit) {
  if (text.length <= limit) {
    return text;
  }
  let end = 0;
  let kept = 0;
  while (end < text.length && kept < limit) {
    end += text.codePointAt(end) > 0xffff ? 2 : 1;
    kept += 1;
  }
  return end >= text.length ? text : shown(text, end);
}

/** The text, cut where it is longer than `limit` bytes as UTF-8; no character is cut in two. */
export function cutBytes(text, limit) {
  if (text.length * 3 <= limit || Buffer.byteLength(text) <= limit) {
    return text;
  }
  let end = 0;
  let bytes = 0;
  while (end < text.length) {
    const code = text.codePointAt(end);
    const size = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    if (bytes + size > limit) {
      break;
    }
    bytes += size;
    end += code > 0xffff ? 2 : 1;
  }
  return shown(text, end);
}

/** The text of a message's content: the string itself, or its text blocks joined by line ends. */
export function textOf(content) {
  if (typeof content === "string") {
    return content;
  }
  return blocksOf(content)
    .filter((block) => block.type === "text" && typeof block.text === "string")
    .map((block) => block.text)
    .join("\n");
}

/** The blocks of a message's content; a string is one text block. */
export function blocksOf(content) {
  if (typeof content === "string") {
    return [{ type: "text", text: content }];
  }
  return Array.isArray(content) ? content.filter(isObject) : [];
}

/** Whether the value is an object, and no array. */
export function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The value as JSON has it: a copy of its own; undefined for what is none, as what refers to itself is. */
export function jsonCopy(value) {
  try {
    return JSON.parse(JSON.stringify(value));
  } catch {
    return undefined;
  }
}

/** A value of JSON as canonical text. */
export function jsonText(value) {
  return JSON.stringify(sorted(value));
}

/** Whether a value of JSON nests deeper than the server takes. */
export function isTooDeep(value, left = MAX_DEPTH) {
  if (typeof value !== "object" || value === null) {
    return false;
  }
  return left === 0 || Object.values(value).some((inner) => isTooDeep(inner, left - 1));
}

function shown(text, end) {
  let more = 0;
  for (let index = end; index < text.length; index += text.codePointAt(index) > 0xffff ? 2 : 1) {
    more += 1;
  }
  return `${text.slice(0, end)}[cut: ${more} more characters]`;
}

function sorted(value) {
  if (Array.isArray(value)) {
    return value.map(sorted);
  }
  return isObject(value) ? Object.fromEntries(Object.keys(value).sort().map((name) => [name, sorted(value[name])])) : value;
}
