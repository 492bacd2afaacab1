// The server's routes: asked with the key, answered with the server's own times, and every trouble put into words.

const server = { key: "", info: null };

class Trouble extends Error {
  constructor(status, words, wait = 0) {
    super(words);
    this.status = status;
    this.wait = wait;
  }
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (server.key) headers.authorization = `Bearer ${server.key}`;
  let response;
  try {
    response = await fetch(`.${path}`, { ...options, headers, cache: "no-store" }); // beside the page, wherever a proxy put it
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble(0, "The server does not answer. See whether adapler serve still runs, then run again.");
  }
  if (response.ok) return response;
  let said = "";
  try {
    said = (await response.json()).error ?? "";
  } catch { /* somebody between, such as a proxy, wrote this answer */ }
  throw troubled(response.status, said, Number(response.headers.get("retry-after")) || 0);
}

function troubled(status, said, wait) {
  const quoted = said ? ` It says: ${visible(said)}.` : "";
  const words = {
    400: `The server cannot read the request.${quoted}`,
    401: server.key ? "That API key is not this server's. Type the right one above." : "This server wants an API key. Type it above.",
    408: "The text did not reach the server in time. Shorten it, or run again.",
    413: `The text is larger than this server takes (${number(server.info?.adapler.payload_limit ?? 0)} bytes). Shorten it.`,
    422: `The server refuses the request.${quoted} If the model was changed meanwhile, load the page again.`,
    424: `The model has no answer.${quoted}`,
    429: `The server is busy and asks to come back in ${wait || 1} s.`,
    503: "The server is about to end. Start it again, then run again.",
    504: "The server found no answer in time. Shorten the text, or run again when it is less busy.",
  };
  return new Trouble(status, words[status] ?? `The server answered with status ${status}.${quoted} Its log says more.`, wait || 1);
}

async function getInfo() {
  server.info = await (await request("/info")).json();
  return server.info;
}

// { content, seconds: by stage, header: name -> value }
async function post(path, body, signal) {
  const sent = JSON.stringify(body);
  const limit = server.info?.adapler.payload_limit;
  if (limit && new Blob([sent]).size > limit) throw troubled(413, "", 0);
  const response = await request(path, { method: "POST", headers: { "content-type": "application/json" }, body: sent, signal });
  const timing = response.headers.get("server-timing") ?? "";
  const seconds = Object.fromEntries(
    [...timing.matchAll(/(\w+);dur=([\d.]+)/g)].map(([, stage, spent]) => [stage, Number(spent) / 1000]),
  );
  return { content: await response.json(), seconds, header: (name) => response.headers.get(name) };
}

// What is timed runs one at a time, or it would disturb itself.
let line = Promise.resolve();
function inTurn(work) {
  const done = line.then(work);
  line = done.catch(() => {});
  return done;
}

const spent = (seconds) => (seconds.tokenization ?? 0) + (seconds.inference ?? 0);
