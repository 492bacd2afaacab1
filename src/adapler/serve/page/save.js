// The picture as a file: a page that fetches nothing, or an image that is drawn here.

function download(blob, name) {
  const address = URL.createObjectURL(blob);
  const anchor = make("a", { href: address, download: name });
  document.body.append(anchor);
  anchor.click();
  anchor.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

// Built as a document of its own, so that the browser escapes every text when it is written out.
function savedPage(title, parts) {
  const page = document.implementation.createHTMLDocument(title);
  const policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
  page.documentElement.lang = "en";
  page.head.prepend(
    make("meta", { charset: "utf-8" }),
    make("meta", { "http-equiv": "Content-Security-Policy", content: policy }),
    make("meta", { name: "viewport", content: "width=device-width, initial-scale=1" }),
    make("meta", { name: "color-scheme", content: "light dark" }),
  );
  page.head.append(make("style", {}, find("style").textContent));
  page.body.className = "adapler saved-page";
  page.body.append(make("h1", {}, title), ...parts.map((part) => part.cloneNode(true)));
  for (const part of page.querySelectorAll("[hidden]")) part.removeAttribute("hidden");
  for (const part of page.querySelectorAll("[tabindex]")) part.removeAttribute("tabindex");
  return new Blob(["<!doctype html>\n", page.documentElement.outerHTML, "\n"], { type: "text/html" });
}

const FONT = "13px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif";
const BOLD = FONT.replace("13px", "600 17px");
const EDGE = 24, HEAD = 112, LINE = 23, WIDEST = 1160;
const MOST_PIXELS = 16000; // what browsers let a canvas be high

function savedImage(picture, title, notes) {
  const look = getComputedStyle(document.body);
  const colour = (name) => look.getPropertyValue(`--${name}`).trim();
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = FONT;
  const { rows, height, width } = laidOut(picture, pen);
  const top = EDGE + 34 + 20 * notes.length;
  const full = top + height + 46 + EDGE;
  const scale = full * 2 <= MOST_PIXELS ? 2 : Math.min(1, MOST_PIXELS / full);
  const wide = Math.max(width, 620) + 2 * EDGE;
  pen.canvas.width = Math.ceil(wide * scale);
  pen.canvas.height = Math.ceil(full * scale);
  pen.scale(scale, scale);
  pen.fillStyle = colour("page");
  pen.fillRect(0, 0, wide, full);
  pen.textBaseline = "middle";
  write(pen, title, EDGE, EDGE + 8, colour("ink"), BOLD);
  notes.forEach((note, index) => write(pen, note, EDGE, EDGE + 34 + 20 * index, colour("dim")));
  const mirror = (x, span) => (picture.rtl ? wide - x - span : x);
  for (const row of rows) {
    const y = top + row.y + LINE / 2;
    write(pen, row.head, mirror(EDGE, pen.measureText(row.head).width), y, colour("dim"));
    for (const piece of row.pieces) paint(pen, piece, mirror(EDGE + HEAD + piece.x, piece.width), top + piece.y, colour);
  }
  paintLegend(pen, top + height + 30, colour);
  return new Promise((resolve) => pen.canvas.toBlob(resolve, "image/png"));
}

// Words in columns where they fit, else running on; places are counted from the corner of the first row.
function laidOut(picture, pen) {
  const breadth = (text) => pen.measureText(text).width;
  const columns = picture.layers[0].words.map((word) => word.pieces.reduce((sum, piece) => sum + breadth(piece.text), 8));
  const grid = columns.reduce((sum, width) => sum + width + 3, 0) <= WIDEST;
  const rows = [];
  let y = 0, right = 0;
  for (const layer of picture.layers) {
    const row = { y, head: `layer ${layer.number}  ${layer.entered}/${picture.tokens}`, pieces: [] };
    let x = 0;
    (grid ? layer.words : drawnTogether(layer.words)).forEach((word, index) => {
      const dots = typeof word === "number" ? [{ text: "·".repeat(Math.min(word, 60)), fate: "gone", level: null }] : null;
      const pieces = dots ?? word.pieces;
      const width = grid ? columns[index] : pieces.reduce((sum, piece) => sum + breadth(piece.text), 8);
      if (!grid && x && x + width > WIDEST) { x = 0; y += LINE; }
      let inner = x + 4;
      pieces.forEach((piece, place) => {
        const before = place ? 0 : 4, after = place === pieces.length - 1 ? 4 : 0, letters = breadth(piece.text);
        row.pieces.push({ ...piece, x: inner - before, y, width: letters + before + after, inset: before, letters });
        inner += letters;
      });
      x += width + 3;
      right = Math.max(right, x);
    });
    y += LINE + (grid ? 0 : 6);
    rows.push(row);
  }
  return { rows, height: y, width: HEAD + right };
}

function write(pen, text, x, y, fill, font = FONT) {
  pen.font = font;
  pen.fillStyle = fill;
  pen.fillText(text, x, y);
  pen.font = FONT;
}

function paint(pen, piece, x, y, colour) {
  const middle = y + LINE / 2;
  if (piece.fate === "kept" && piece.level !== null) {
    pen.fillStyle = colour(`c${piece.level}`);
    pen.beginPath();
    pen.roundRect(x, y + 2, piece.width, LINE - 4, 3);
    pen.fill();
  }
  const ink = piece.fate === "kept" ? (piece.level === null ? "ink" : piece.level < 4 ? "on-pale" : piece.level < 5 ? "on-middle" : "on-strong") : piece.fate;
  write(pen, piece.text, x + piece.inset, middle, colour(ink));
  if (piece.fate === "left") pen.fillRect(x + piece.inset, middle, piece.letters, 1);
}

function paintLegend(pen, y, colour) {
  let x = EDGE;
  const put = (piece) => {
    const letters = pen.measureText(piece.text).width, width = letters + 14;
    paint(pen, { ...piece, width, letters, inset: 7 }, x, y - LINE / 2, colour);
    x += width;
  };
  write(pen, "contribution, in equal shares:", x, y, colour("dim"));
  x += pen.measureText("contribution, in equal shares:").width + 8;
  LOOK.names.forEach((text, level) => put({ text, level, fate: "kept" }));
  put({ text: "leaves here", level: null, fate: "left" });
  put({ text: "gone before", level: null, fate: "gone" });
}
