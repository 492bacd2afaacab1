// The state of the page as a link. It stands behind #, which no browser sends to a server, and is made only when asked for.

const MARK = "#s=";
const LONGEST = 30000; // characters of a link that programs still pass on

function written64(state) {
  const bytes = new TextEncoder().encode(JSON.stringify(state));
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

function read64(text) {
  const bytes = Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (letter) => letter.charCodeAt(0));
  return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
}

// The panes' states, or null where the address holds none; raises where it holds something else.
function linked() {
  if (!location.hash.startsWith(MARK)) return null;
  const states = read64(location.hash.slice(MARK.length));
  const good = (state) => typeof state?.text === "string" && [undefined, "string"].includes(state.second === undefined ? undefined : typeof state.second)
    && (state.point === null || typeof state.point === "string");
  if (!Array.isArray(states) || states.length < 1 || states.length > 2 || !states.every(good)) throw new Error("not a state");
  return states;
}

// A link is of the state it was made of.
function dropLink() {
  if (location.hash.startsWith(MARK)) history.replaceState(null, "", location.pathname + location.search);
  find("#link-form").hidden = true;
  tell("");
}

async function copyLink(states) {
  const address = `${location.href.split("#")[0]}${MARK}${written64(states)}`;
  if (address.length > LONGEST) return notice("The text is too long for a link. Save it as HTML instead.");
  history.replaceState(null, "", address);
  find("#link-form").hidden = false;
  find("#link-text").value = address;
  try {
    await navigator.clipboard.writeText(address);
    return tell("The link is copied. It holds the texts themselves and the dial, and no key.");
  } catch {
    find("#link-text").select();
    return tell("This is the link; copy it. It holds the texts themselves and the dial, and no key.");
  }
}
