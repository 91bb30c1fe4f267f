// Small tools of report.html. Text reaches the page through text nodes only: nothing here sets HTML.

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value == null || value === false) continue;
    if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(2)) {
    if (child != null && child !== false) node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

function number(value, digits = 3) {
  if (value == null) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 100000)) return value.toExponential(2);
  return size >= 1000 ? Math.round(value).toLocaleString("en") : value.toFixed(size >= 100 ? 1 : digits);
}

const signed = (value, digits = 2) => (value > 0 ? "+" : value < 0 ? "−" : "") + number(Math.abs(value), digits);
const plural = (n, one, many = one + "s") => `${n} ${n === 1 ? one : many}`;
const percent = (share) => `${(100 * share).toFixed(3)}%`;

// What the writer of the page made visible (␛, ⟨U+202E⟩) is set apart from what the model wrote, and spelled out: few
// fonts have the pictures of control characters.
const CONTROLS = ("NUL SOH STX ETX EOT ENQ ACK BEL BS TAB LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC " +
  "FS GS RS US SP DEL").split(" ");

function marked(text) {
  return text.split(/([\u2400-\u2421]|⟨U\+[0-9A-F]{4,6}⟩)/u).map((piece, i) => i % 2
    ? el("span", { class: "control" }, CONTROLS[piece.codePointAt(0) - 0x2400] ?? piece.slice(1, -1)) : piece);
}

function shown(text) {
  if (typeof text === "string") return marked(text);
  const cut = el("span", { class: "cut" }, `✂ ${text.cut.toLocaleString("en")} characters cut here`);
  return [...marked(text.head), cut, ...marked(text.tail)];
}

function section(id, title, lead, ...children) {
  const heading = el("h2", { id: `${id}-title` }, title);
  return el("section", { id, "aria-labelledby": `${id}-title` }, heading, lead && el("p", { class: "lead" }, lead), children);
}
