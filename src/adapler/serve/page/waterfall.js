// The waterfall: a table, a row a layer, shades by contribution; and the same as a list of words.

// Short texts get a column a word; where that does not fit, each row is running text.
function showWaterfall(place, picture) {
  const fits = picture.layers[0].words.length <= 80;
  if (fits) {
    place.replaceChildren(waterfall(picture, true));
    if (place.scrollWidth <= place.clientWidth + 1) return;
  }
  place.replaceChildren(waterfall(picture, false));
}

function waterfall(picture, grid) {
  const rows = picture.layers.map((layer, index) => {
    const words = (grid ? layer.words : drawnTogether(layer.words)).map(part);
    const cells = grid ? words.map((word) => make("td", { role: "cell" }, word)) : make("td", { role: "cell" }, words.flatMap((word) => [word, " "]));
    const row = make("tr", { class: "layer", role: "row" }, head(layer, picture), cells);
    row.style.setProperty("--row", index);
    return row;
  });
  const caption = make("caption", { class: "hidden" }, "Tokens in front of each layer. Struck-through ones leave there; a list is below.");
  // Roles are written out, since small screens show the table as blocks.
  return make("table", { class: `waterfall ${grid ? "columns" : "running"}`, role: "table", dir: picture.rtl ? "rtl" : "ltr" },
    caption, make("tbody", { role: "rowgroup" }, rows));
}

function head(layer, picture) {
  const bar = make("span", { class: "share", "aria-hidden": "true" }, make("i"));
  bar.firstChild.style.inlineSize = `${(100 * layer.entered) / picture.tokens}%`;
  const count = make("small", { "aria-label": `${layer.entered} of ${picture.tokens} tokens enter` }, `${layer.entered}/${picture.tokens}`);
  return make("th", { scope: "row", role: "rowheader", class: "head" }, make("bdi", { dir: "ltr" }, `layer ${layer.number} `, count), bar);
}

function part(word) {
  if (typeof word === "number") {
    return make("span", { class: "gap", "aria-hidden": "true", title: `${word} gone before` }, "·".repeat(word));
  }
  return make("bdi", { dir: "auto" }, word.pieces.map(shaded));
}

function shaded(piece) {
  if (piece.fate === "gone") return make("span", { class: "gone", "aria-hidden": "true", "data-place": piece.place }, piece.text);
  const shade = piece.level === null ? "" : ` c${piece.level}`;
  const said = piece.share === null ? null : piece.share.toFixed(2) + (piece.fate === "left" ? ", leaves here" : "");
  return make(piece.fate === "left" ? "s" : "span", { class: piece.fate + shade, title: said, "data-place": piece.place }, piece.text);
}

function legend() {
  const ramp = LOOK.names.map((name, level) => make("span", { class: `c${level}` }, name));
  return make("ul", { class: "legend" },
    make("li", {}, "contribution, in equal shares:"),
    make("li", { class: "ramp" }, ramp),
    make("li", {}, make("s", { class: "left" }, "word"), " leaves in front of this layer"),
    make("li", {}, make("span", { class: "gone" }, "word"), " or ", make("span", { class: "gone" }, "·"), " gone before"));
}

function leftWhere(picture) {
  const rows = picture.layers.map((layer) => {
    const left = layer.words.flatMap((word) => word.pieces).filter((piece) => piece.fate === "left");
    return listRow(`in front of layer ${layer.number}`, left, layer.entered);
  });
  const last = picture.layers.at(-1);
  const stayed = last.words.flatMap((word) => word.pieces).filter((piece) => piece.fate === "kept");
  rows.push(listRow("through all layers", stayed, ""));
  const heads = ["left", "tokens", "enter the layer", "which"].map((name) => make("th", { scope: "col" }, name));
  return make("table", { class: "list" }, make("thead", {}, make("tr", {}, heads)), make("tbody", {}, rows));
}

function listRow(name, pieces, entered) {
  const words = pieces.flatMap((piece) => [make("bdi", { dir: "auto" }, piece.text), " "]);
  return make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "number" }, String(pieces.length)),
    make("td", { class: "number" }, String(entered)), make("td", {}, words.length ? words : "none"));
}
