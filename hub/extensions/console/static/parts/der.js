// @ts-check
/**
 * Certificate signing requests (PKCS#10, RFC 2986) as facts to compare. A strict DER reader: definite and minimal lengths only,
 * no rest after a value. Everything that it returns is text from a stranger: show it in text nodes.
 */

const MAX_REQUEST_BYTES = 16 * 1024;
const MAX_DEPTH = 12;
const SEQUENCE = 0x30, SET = 0x31, OID = 0x06, BIT_STRING = 0x03, OCTET_STRING = 0x04, BOOLEAN = 0x01, INTEGER = 0x02;
const TEXTS = new Map([[0x0c, "utf-8"], [0x13, "ascii"], [0x16, "ascii"], [0x12, "ascii"], [0x1e, "utf-16be"]]);
/** Names of object identifiers. */
const NAMES = new Map(Object.entries({
  ...{ "2.5.4.3": "CN", "2.5.4.10": "O", "2.5.4.11": "OU", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST" },
  ...{ "1.2.840.10045.3.1.7": "P-256", "1.3.132.0.34": "P-384", "1.3.132.0.35": "P-521", "1.3.101.112": "Ed25519" },
  ...{ "1.3.6.1.5.5.7.3.1": "server auth", "1.3.6.1.5.5.7.3.2": "client auth", "2.5.29.37.0": "any" },
}));
const EXTENSION_REQUEST = "1.2.840.113549.1.9.14";
const USAGES = [
  ...["digital signature", "content commitment", "key encipherment", "data encipherment", "key agreement"],
  ...["cert sign", "crl sign"],
];

/** @typedef {{tag: number, content: Uint8Array, whole: Uint8Array}} Value */
/**
 * @typedef {object} RequestFacts
 * @property {string} subject as text
 * @property {string[]} commonNames
 * @property {string[]} organizations
 * @property {string} key its kind and size
 * @property {string} fingerprint SHA-256 of the SubjectPublicKeyInfo in hex, as hubctl prints it
 * @property {string[]} names subject alternative names
 * @property {string[]} usages key usages and purposes that the request itself asks for
 * @property {string[]} extensions other extensions, by their OID
 */

/** Reads the value at the start of `bytes`; returns it and the rest. Throws on anything that DER does not allow. */
function read(/** @type {Uint8Array} */ bytes) {
  if (bytes.length < 2) throw new Error("it ends too early");
  const tag = bytes[0];
  if ((tag & 0x1f) === 0x1f) throw new Error("it has a tag of several bytes");
  let length = bytes[1], start = 2;
  if (length > 0x7f) {
    const count = length & 0x7f;
    if (count === 0 || count > 2 || bytes.length < 2 + count) throw new Error("it has an invalid length");
    length = 0;
    for (let at = 2; at < 2 + count; at += 1) length = length * 256 + bytes[at];
    start += count;
    if (length < 0x80 || (count === 2 && length < 0x100)) throw new Error("it has a length that is not minimal");
  }
  const end = start + length;
  if (end > bytes.length) throw new Error("it ends too early");
  return { value: { tag, content: bytes.subarray(start, end), whole: bytes.subarray(0, end) }, rest: bytes.subarray(end) };
}

/** The values inside a constructed one of this tag. */
function inside(/** @type {Value} */ value, /** @type {number} */ tag, depth = 0) {
  if (value.tag !== tag) throw new Error(`it has tag ${value.tag.toString(16)} where ${tag.toString(16)} belongs`);
  if (depth > MAX_DEPTH) throw new Error("it is nested too deeply");
  const found = [];
  for (let rest = value.content; rest.length; ) {
    const next = read(rest);
    found.push(next.value);
    rest = next.rest;
  }
  return found;
}

/** The value that `bytes` are, with nothing after it. */
function only(/** @type {Uint8Array} */ bytes) {
  const { value, rest } = read(bytes);
  if (rest.length) throw new Error("something follows its end");
  return value;
}

function identifier(/** @type {Value} */ value) {
  if (value.tag !== OID || !value.content.length) throw new Error("an object identifier is missing");
  const parts = [];
  let part = 0, begun = false;
  for (const byte of value.content) {
    if (!begun && byte === 0x80) throw new Error("an object identifier is not minimal");
    part = part * 128 + (byte & 0x7f);
    begun = byte > 0x7f;
    if (part > Number.MAX_SAFE_INTEGER / 128) throw new Error("an object identifier is too large");
    if (!begun) {
      parts.push(part);
      part = 0;
    }
  }
  if (begun) throw new Error("an object identifier ends too early");
  const first = Math.min(2, Math.floor(parts[0] / 40));
  return [first, parts[0] - 40 * first, ...parts.slice(1)].join(".");
}

const named = (/** @type {Value} */ value) => NAMES.get(identifier(value)) ?? identifier(value);
const hex = (/** @type {Uint8Array} */ bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

function text(/** @type {Value} */ value) {
  const form = TEXTS.get(value.tag);
  if (!form) return `#${hex(value.content)}`;
  if (form === "ascii" && value.content.some((byte) => byte > 0x7f)) return `#${hex(value.content)}`;
  return new TextDecoder(form === "ascii" ? "utf-8" : form, { fatal: true, ignoreBOM: true }).decode(value.content);
}

/** The attributes of a Name as [short name or OID, text]. */
function attributes(/** @type {Value} */ name) {
  return inside(name, SEQUENCE).flatMap((group) =>
    inside(group, SET).map((pair) => {
      const [kind, value] = inside(pair, SEQUENCE);
      return /** @type {[string, string]} */ ([named(kind), text(value)]);
    }),
  );
}

function modulusBits(/** @type {Value} */ key) {
  const [modulus] = inside(only(key.content.subarray(1)), SEQUENCE);
  if (modulus?.tag !== INTEGER) throw new Error("its RSA key has no modulus");
  const digits = modulus.content[0] === 0 ? modulus.content.subarray(1) : modulus.content;
  return digits.length * 8 - Math.clz32(digits[0]) + 24;
}

function keyKind(/** @type {Value} */ info) {
  const [algorithm, key] = inside(info, SEQUENCE);
  if (key?.tag !== BIT_STRING || key.content[0] !== 0) throw new Error("its public key is no bit string");
  const [kind, parameter] = inside(algorithm, SEQUENCE);
  if (identifier(kind) === "1.2.840.113549.1.1.1") return `RSA ${modulusBits(key)}`;
  return identifier(kind) === "1.2.840.10045.2.1" ? `ECDSA ${named(parameter)}` : named(kind);
}

/** A GeneralName as text with its type. */
function alternative(/** @type {Value} */ { tag, content }) {
  if (tag === 0x87 && (content.length === 4 || content.length === 16)) return `IP ${content.length === 4 ? content.join(".") : (hex(content).match(/..../g) ?? []).join(":")}`;
  const kind = { 0x81: "email", 0x82: "DNS", 0x86: "URI" }[tag];
  return kind ? `${kind} ${text({ tag: 0x16, content, whole: content })}` : `type ${tag & 0x1f} #${hex(content).slice(0, 200)}`;
}

function bits(/** @type {Value} */ value) {
  return USAGES.filter((_, at) => value.tag === BIT_STRING && ((value.content[1 + (at >> 3)] ?? 0) >> (7 - (at & 7))) & 1);
}

/** Subject alternative names, usages and other extensions of the extension request. */
function extensions(/** @type {Value[]} */ requested) {
  /** @type {{names: string[], usages: string[], extensions: string[]}} */
  const found = { names: [], usages: [], extensions: [] };
  for (const attribute of requested) {
    const [kind, values] = inside(attribute, SEQUENCE);
    if (identifier(kind) !== EXTENSION_REQUEST) {
      found.extensions.push(`attribute ${identifier(kind)}`);
      continue;
    }
    for (const extension of inside(values, SET).flatMap((list) => inside(list, SEQUENCE))) {
      const [type, ...rest] = inside(extension, SEQUENCE);
      const body = rest.at(-1), id = identifier(type);
      if (body?.tag !== OCTET_STRING || (rest.length === 2 && rest[0].tag !== BOOLEAN)) throw new Error("an extension is unreadable");
      const value = only(body.content);
      if (id === "2.5.29.17") found.names.push(...inside(value, SEQUENCE).map(alternative));
      else if (id === "2.5.29.15") found.usages.push(...bits(value));
      else if (id === "2.5.29.37") found.usages.push(...inside(value, SEQUENCE).map(named));
      else found.extensions.push(id);
    }
  }
  return found;
}

/** The bytes of the only PEM block in base64 text. */
function derOf(/** @type {string} */ encoded) {
  if (encoded.length > 2 * MAX_REQUEST_BYTES) throw new Error("it is too large");
  const block = /^\s*-----BEGIN CERTIFICATE REQUEST-----([A-Za-z0-9+/=\s]*)-----END CERTIFICATE REQUEST-----\s*$/.exec(atob(encoded));
  if (!block) throw new Error("it is not exactly one PEM block of type CERTIFICATE REQUEST");
  return Uint8Array.from(atob(block[1].replace(/\s/g, "")), (character) => character.charCodeAt(0));
}

/**
 * Decodes `spec.request` of a CertificateSigningRequest. Throws an Error that says what is wrong with it.
 * @param {string} encoded @returns {Promise<RequestFacts>}
 */
export async function decodeRequest(encoded) {
  try {
    return await facts(encoded);
  } catch (error) {
    throw error instanceof TypeError || error instanceof DOMException ? new Error("it cannot be decoded") : error;
  }
}

async function facts(/** @type {string} */ encoded) {
  const [content, , signature] = inside(only(derOf(encoded)), SEQUENCE);
  const [version, subject, info, requested] = inside(content, SEQUENCE);
  if (version?.tag !== INTEGER || !info || signature?.tag !== BIT_STRING) throw new Error("it is no certificate request");
  const parts = attributes(subject);
  const of = (/** @type {string} */ kind) => parts.filter(([name]) => name === kind).map(([, value]) => value);
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", /** @type {BufferSource} */ (info.whole)));
  return {
    subject: parts.map(([name, value]) => `${name}=${value}`).join(", "),
    commonNames: of("CN"),
    organizations: of("O"),
    key: keyKind(info),
    fingerprint: hex(digest),
    ...extensions(requested ? inside(requested, 0xa0) : []),
  };
}
