// A browser as far as docs/quickstart-browser.md needs one: node browser.mjs PAGE_URL
//
// Loads the page and its script over HTTP and plays the script in a context of its own, with a fetch
// that follows the standard where it can go wrong here: the origin is sent and must be named by the
// answer, what is no simple request is asked about first, bodies come as they are sent. Each thing
// that happens is a line of JSON on stdout; each line on stdin names a form, a field and what is typed
// into it, and is sent. Ends with its stdin. Played by test_browser_page.py.

import http from "node:http";
import readline from "node:readline";
import { Readable } from "node:stream";
import vm from "node:vm";

const page = new URL(process.argv[2]);
const SIMPLE_TYPES = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"];
const SIMPLE_HEADERS = ["accept", "accept-language", "content-language"];

function tell(what) {
  process.stdout.write(`${JSON.stringify(what)}\n`);
}

function ask(url, method = "GET", headers = {}, body = undefined) {
  return new Promise((resolve, reject) => {
    const request = http.request(url, { method, headers, agent: false }, resolve);
    request.on("error", reject);
    request.end(body);
  });
}

async function read(answer) {
  let text = "";
  answer.setEncoding("utf8");
  for await (const piece of answer) text += piece;
  return text;
}

function checkOrigin(answer, url) {
  if (new URL(url).origin === page.origin) return;
  if (answer.headers["access-control-allow-origin"] !== page.origin) {
    tell({ blocked: String(url) });
    throw new TypeError("blocked by CORS");
  }
}

async function fetchAsPage(url, { method = "GET", headers = {}, body } = {}) {
  const type = headers["content-type"];
  const isSimple = (name) =>
    SIMPLE_HEADERS.includes(name) || (name === "content-type" && SIMPLE_TYPES.includes(type));
  const unsafe = Object.keys(headers).filter((name) => !isSimple(name));
  if (unsafe.length || !["GET", "HEAD", "POST"].includes(method)) {
    const answer = await ask(url, "OPTIONS", {
      origin: page.origin,
      "access-control-request-method": method,
      "access-control-request-headers": unsafe.join(","),
    });
    checkOrigin(answer, url);
    const list = (name) => (answer.headers[name] ?? "").toLowerCase().split(/, */);
    const allowed = list("access-control-allow-headers");
    const isAllowed = list("access-control-allow-methods").includes(method.toLowerCase());
    if (answer.statusCode >= 300 || !isAllowed || !unsafe.every((n) => allowed.includes(n))) {
      tell({ blocked: `preflight of ${url}` });
      throw new TypeError("blocked by CORS");
    }
    tell({ preflight: method });
  }
  const answer = await ask(url, method, { ...headers, origin: page.origin }, body);
  if (method === "GET") tell({ connected: answer.statusCode, url: String(url) });
  checkOrigin(answer, url);
  return new Response(Readable.toWeb(answer), { status: answer.statusCode });
}

class Element extends EventTarget {
  #text = "";
  constructor(id) {
    super();
    this.id = id;
    this.elements = { body: { value: "" }, token: { value: "" } };
  }
  get textContent() {
    return this.#text;
  }
  set textContent(text) {
    this.#text = text;
    if (this.id) tell({ [this.id]: text });
  }
  append(child) {
    tell({ [this.id]: child.textContent });
  }
}

const html = await read(await ask(page));
const elements = new Map([...html.matchAll(/ id="(\w+)"/g)].map(([, id]) => [`#${id}`, new Element(id)]));
const document = {
  querySelector: (selector) => elements.get(selector),
  createElement: () => new Element(""),
};
const context = vm.createContext({ document, fetch: fetchAsPage, TextDecoderStream, setTimeout, JSON });
for (const [, source] of html.matchAll(/<script src="([^"]+)">/g)) {
  vm.runInContext(await read(await ask(new URL(source, page))), context, { filename: source });
}
for await (const line of readline.createInterface({ input: process.stdin })) {
  const typed = JSON.parse(line);
  const form = elements.get(`#${typed.form}`);
  const event = new Event("submit", { cancelable: true });
  form.elements[typed.field].value = typed.text;
  form.dispatchEvent(event);
  if (!event.defaultPrevented) throw new Error("the browser would leave the page");
}
process.exit(0);
