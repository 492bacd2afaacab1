// An account of /explain laid out as layers of words. What is shown is what reports show; see heatmap.py.

// { tokens, rtl, layers: [{ number, entered, words: [{ pieces: [{ text, fate, level, share, place }], gone }] }] }
function layersOf(account) {
  const { pieces, contributions, kept } = account;
  const spelt = written(account);
  let alive = new Set(pieces.keys());
  const layers = kept.map((entered, index) => {
    const row = contributions[index] ?? [];
    const judged = row.filter((score) => score !== null).length;
    const before = alive;
    alive = new Set(entered);
    const words = spelt.map((places) => ({
      gone: places.every((place) => !before.has(place)),
      pieces: places.map((place) => piece(place, pieces[place], row[place], judged, before, alive)),
    }));
    return { number: index + 1, entered: entered.length, words };
  });
  return { tokens: pieces.length, rtl: runsRightToLeft(account), layers };
}

function piece(place, text, score, judged, before, alive) {
  const shown = visible(text);
  if (!before.has(place)) return { place, text: shown, fate: "gone", level: null, share: null };
  const share = score == null ? null : score * judged;
  const level = share === null ? null : LOOK.levels.filter((least) => least <= share).length;
  return { place, text: shown, fate: alive.has(place) ? "kept" : "left", level, share };
}

// Words and, each by itself, the tokens that are in none, in order.
function written(account) {
  const inside = new Set(account.words.flatMap((word) => word.tokens));
  const alone = [...account.pieces.keys()].filter((place) => !inside.has(place)).map((place) => [place]);
  return [...account.words.map((word) => word.tokens), ...alone].sort((one, other) => one[0] - other[0]);
}

function runsRightToLeft(account) {
  const letters = account.words.map((word) => word.text).join("");
  const turned = letters.match(/[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/gu)?.length ?? 0;
  return turned > (letters.match(/\p{L}/gu)?.length ?? 0) - turned;
}

// The same with words of which nothing is left drawn together, as numbers of tokens.
function drawnTogether(words) {
  const parts = [];
  for (const word of words) {
    if (!word.gone) parts.push(word);
    else if (typeof parts.at(-1) === "number") parts[parts.length - 1] += word.pieces.length;
    else parts.push(word.pieces.length);
  }
  return parts;
}

// What a reader must know of how the text was read.
function notesOf(account) {
  const notes = [];
  if (account.truncated) notes.push(`The text is longer than the model reads: this is about ${number(account.pieces.length)} tokens of it.`);
  if (account.windows > 1) notes.push(`The text was read in ${account.windows} windows that overlap; contributions are shares of one window.`);
  if (account.escalated) notes.push("A faster answer was too unsure; this is the careful one, and the FLOPs are those of both.");
  return notes;
}
