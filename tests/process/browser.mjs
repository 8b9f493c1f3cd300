// A browser as far as docs/quickstart-browser.md needs one: node browser.mjs PAGE_URL
//
// Loads the page and its script over HTTP and plays the script in a context of its own, with fetch
// and EventSource that follow the Fetch and HTML standards where they can go wrong here: the origin
// is sent and must be named by the answer, what is no simple request is asked about first, an event
// stream comes back after its end or a network error with the id of its last event, and not after
// any other answer. Each thing that happens is a line of JSON on stdout; each line on stdin is typed
// into the form and sent. Ends with its stdin. Played by test_browser_page.py.

import http from "node:http";
import readline from "node:readline";
import vm from "node:vm";

const page = new URL(process.argv[2]);
const SIMPLE_TYPES = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"];

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
  const unsafe = Object.keys(headers).filter((n) => n !== "content-type" || !SIMPLE_TYPES.includes(type));
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
  checkOrigin(answer, url);
  const text = await read(answer);
  const ok = answer.statusCode >= 200 && answer.statusCode < 300;
  return { ok, status: answer.statusCode, json: async () => JSON.parse(text) };
}

class EventSource extends EventTarget {
  static CONNECTING = 0;
  static OPEN = 1;
  static CLOSED = 2;

  constructor(url) {
    super();
    this.url = url;
    this.readyState = EventSource.CONNECTING;
    this.onerror = null;
    this.lastEventId = "";
    this.retryMs = 3000;
    this.#connect();
  }

  async #connect() {
    const headers = { accept: "text/event-stream", origin: page.origin, "cache-control": "no-store" };
    if (this.lastEventId) headers["last-event-id"] = this.lastEventId;
    let isStream = false;
    try {
      const answer = await ask(this.url, "GET", headers);
      tell({ connected: answer.statusCode, lastEventId: this.lastEventId });
      try {
        checkOrigin(answer, this.url);
      } catch {
        return this.#fail();
      }
      isStream = answer.statusCode === 200 && answer.headers["content-type"].startsWith("text/event-stream");
      if (!isStream) return this.#fail();
      this.readyState = EventSource.OPEN;
      await this.#readEvents(answer);
    } catch {
      // A network error, before or after the answer began: come back.
    }
    this.readyState = EventSource.CONNECTING;
    this.#error();
    setTimeout(() => this.#connect(), this.retryMs);
  }

  async #readEvents(answer) {
    answer.setEncoding("utf8");
    let buffer = "";
    for await (const piece of answer) {
      const blocks = (buffer + piece).split("\n\n");
      buffer = blocks.pop();
      for (const block of blocks) this.#take(block);
    }
  }

  #take(block) {
    const fields = { event: "message", data: [] };
    for (const line of block.split("\n")) {
      const [name, value] = [line.split(":", 1)[0], line.slice(line.indexOf(":") + 1).replace(/^ /, "")];
      if (name === "data") fields.data.push(value);
      else fields[name] = value;
    }
    if (fields.retry !== undefined) this.retryMs = Number(fields.retry);
    if (fields.id !== undefined) this.lastEventId = fields.id;
    if (!fields.data.length) return;
    const event = new Event(fields.event);
    event.data = fields.data.join("\n");
    this.dispatchEvent(event);
  }

  #fail() {
    this.readyState = EventSource.CLOSED;
    this.#error();
  }

  #error() {
    if (this.onerror) this.onerror(new Event("error"));
  }
}

class Element extends EventTarget {
  #text = "";
  constructor(id) {
    super();
    this.id = id;
    this.elements = { body: { value: "" } };
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
const context = vm.createContext({ document, fetch: fetchAsPage, EventSource, setTimeout, JSON });
for (const [, source] of html.matchAll(/<script src="([^"]+)">/g)) {
  vm.runInContext(await read(await ask(new URL(source, page))), context, { filename: source });
}
for await (const line of readline.createInterface({ input: process.stdin })) {
  const form = elements.get("#change");
  const event = new Event("submit", { cancelable: true });
  form.elements.body.value = line;
  form.dispatchEvent(event);
  if (!event.defaultPrevented) throw new Error("the browser would leave the page");
}
process.exit(0);
