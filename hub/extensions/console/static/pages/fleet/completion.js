// @ts-check
/** Completion in the language of `--where`. Pure functions; the fields are those of `query-fields.json`. */

/** @typedef {{name: string, type: string, about: string, watched: boolean}} Field */
/** @typedef {{text: string, about: string, from: number}} Suggestion `text` replaces what stands between `from` and the cursor */
/** @typedef {(field: string, key: string) => string[]} Values known values of a text field or of a map's entry, or with `key` "*" the keys of a map */

const ORDERS = ["<", "<=", ">", ">=", "==", "!="];
const TEXTS = ["==", "!=", "=~", "!~", "in [", '.startsWith("', '.endsWith("', '.contains("', '.matches("'];
const DURATIONS = ["5m", "1h", "1d", "7d"];
const MOST = 12;
const PATH = String.raw`([A-Za-z_]\w*)(?:\.([\w-]+)|\[("[^"]*"|'[^']*')\])?`;
const AFTER_PATH = new RegExp(`${PATH}\\s*$`);
const AFTER_OPERATOR = new RegExp(`${PATH}\\s*(?:==|!=|<=|>=|<|>|=~|!~|\\bin\\s*\\[(?:[^\\]]*,)?|\\.(?:startsWith|endsWith|contains|matches)\\()\\s*$`);
const AT_START = /(?:^|&&|\|\||[!(])\s*$/;

/** @param {string} text @returns {string} as a quoted text of the language */
export function quoted(text) {
  return `"${text.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`;
}

/** @param {string} where @param {string} condition @returns {string} both, joined by &&; the condition is taken out if it is there */
export function toggled(where, condition) {
  const parts = where ? where.split(" && ") : [];
  const rest = parts.filter((part) => part !== condition);
  if (rest.length < parts.length) return rest.join(" && ");
  return [...(parts.length && where.includes("||") ? [`(${where})`] : parts), condition].join(" && ");
}

/** @param {Field | undefined} field @param {string} word @param {string | null} value of a group @returns {string} the condition that selects the group */
export function conditionFor(field, word, value) {
  if (value === null || value === "") return `!has(${word})`;
  const isText = !field || /text/.test(field.type);
  if (field?.type === "true or false") return value === "true" ? word : `!${word}`;
  return `${word} == ${isText ? quoted(value) : value}`;
}

/**
 * What may stand at the cursor.
 * @param {string} text @param {number} cursor @param {Field[]} fields @param {Values} values @returns {Suggestion[]}
 */
export function complete(text, cursor, fields, values) {
  const before = text.slice(0, cursor);
  const rest = before.replace(/"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'/g, (found) => "x".repeat(found.length));
  const quote = rest.search(/["']/);
  const partial = quote >= 0 ? before.slice(quote) : (/(?:[A-Za-z_][\w.-]*|\d[\w.]*|[<>=!&|]+|\.\w*)$/.exec(rest)?.[0] ?? "");
  const open = rest.endsWith("x") && before !== rest && /["']$/.test(before) ? "" : partial === "!" ? "" : partial;
  const from = cursor - open.length;
  const start = open.replace(/^["']/, "").toLowerCase();
  return offers(before.slice(0, from), open, fields, values)
    .filter((each) => each.text !== open && each.text.replace(/^["']/, "").toLowerCase().startsWith(start))
    .slice(0, MOST)
    .map((each) => ({ ...each, from }));
}

/** @param {string[]} words @param {string} [about] */
function listed(words, about = "") {
  return words.map((text) => ({ text, about }));
}

/** @param {RegExpExecArray} found @param {Field[]} fields @returns {{field: Field | undefined, key: string}} */
function named([, word = "", part = "", entry = ""], fields) {
  const whole = fields.find((field) => field.name === `${word}.${part}`);
  const key = part || entry.slice(1, -1);
  return whole ? { field: whole, key: "" } : { field: fields.find((field) => field.name === word), key };
}

/**
 * @param {string} done the text before `partial` @param {string} partial @param {Field[]} fields @param {Values} values
 * @returns {{text: string, about: string}[]}
 */
function offers(done, partial, fields, values) {
  const held = fields.find((field) => field.type.startsWith("map") && partial.startsWith(`${field.name}.`));
  if (held) {
    return values(held.name, "*").map((key) => ({ text: `${held.name}${/^[A-Za-z_]\w*$/.test(key) ? `.${key}` : `[${quoted(key)}]`}`, about: "" }));
  }
  const operated = AFTER_OPERATOR.exec(done);
  if (operated) {
    const { field, key } = named(operated, fields);
    const type = field?.type.replace("map of ", "");
    if (!field || type === "duration") return listed(field ? DURATIONS : []);
    if (type === "true or false") return listed(["true", "false"]);
    const known = values(field.name, key);
    return listed(type === "text" ? known.map(quoted) : known);
  }
  if (AT_START.test(done)) {
    const has = [{ text: "has(", about: "whether there is a value" }];
    return [...fields.map((field) => ({ text: field.name, about: `${field.type}: ${field.about}` })), ...(/\($/.test(done) ? [] : has)];
  }
  const path = AFTER_PATH.exec(done);
  const field = path && named(path, fields).field;
  if (!field) return listed(["&&", "||"]);
  if (field.type === "true or false") return listed(["&&", "||", "=="]);
  return listed(/text/.test(field.type) ? TEXTS : ORDERS);
}
