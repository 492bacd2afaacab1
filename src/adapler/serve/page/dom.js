// Building elements. Texts become text nodes and attributes here, never markup.

const find = (selector, inside = document) => inside.querySelector(selector);

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child != null));
  return element;
}

function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Characters that cannot be seen, or that would turn a line round, are shown as one that can; joiners are part of words.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\u2028\u2029]/gu;
const visible = (text) => text.replace(UNSEEN, (found) => (found === "\u200c" || found === "\u200d" ? found : "\ufffd"));

// Half characters, which no tokenizer can read, as the server reads them.
const whole = (text) => (text.toWellFormed ? text.toWellFormed() : text.replace(/\p{Cs}/gu, "\ufffd"));

const number = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const times = (value) => `${value < 10 ? value.toFixed(2) : value.toFixed(1)}x`;
const milliseconds = (value) => (value < 10 ? value.toFixed(2) : value.toFixed(value < 100 ? 1 : 0));

function flops(value) {
  const [unit, size] = value >= 1e12 ? ["T", 1e12] : value >= 1e9 ? ["G", 1e9] : ["M", 1e6];
  return `${(value / size).toPrecision(3)} ${unit}`;
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

function later(work, wait) {
  let timer = 0;
  const put = () => { clearTimeout(timer); timer = setTimeout(work, wait); };
  put.cancel = () => clearTimeout(timer);
  return put;
}

const pause = (wait, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, wait);
    signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
  });

let given = 0;
const ownId = (what) => `${what}-${++given}`;
