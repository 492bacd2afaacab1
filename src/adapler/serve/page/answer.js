// The answer with its confidence, and the account beside the full model.

function isQuantity() {
  const labels = Object.keys(server.info.model_type.classifier.id2label).length;
  return server.info.adapler.problem_type === "regression" || labels === 1;
}

const confidence = (score) => (isQuantity() ? score.toFixed(3) : `${(100 * score).toFixed(1)} %`);

// `full` is the list of scores of /predict with nothing removed, or null as long as it is not there.
function answerOf(account, full) {
  const title = make("p", { class: "label" }, make("bdi", {}, visible(account.label)), " ", make("span", { class: "sure" }, confidence(account.score)));
  if (isQuantity()) return [title];
  const fullScores = new Map((full ?? []).map((each) => [each.label, each.score]));
  const best = Object.entries(account.scores).sort((one, other) => other[1] - one[1]).slice(0, 6);
  const rows = best.map(([label, score]) => {
    const bar = make("span", { class: "bar", "aria-hidden": "true" }, make("i"));
    bar.firstChild.style.inlineSize = `${100 * score}%`;
    if (fullScores.has(label)) {
      const tick = make("b");
      tick.style.insetInlineStart = `${100 * fullScores.get(label)}%`;
      bar.append(tick);
    }
    return make("tr", {}, make("th", { scope: "row" }, make("bdi", {}, visible(label))), make("td", { class: "wide" }, bar),
      make("td", { class: "number" }, confidence(score)));
  });
  const key = full ? make("p", { class: "how dim" }, "The line across a bar is where full length ends.") : null;
  const table = make("table", { class: "scores" }, make("caption", { class: "hidden" }, "Confidence of each label"), make("tbody", {}, rows));
  return [title, table, ...(key ? [key] : [])];
}

// `spent` holds lists of milliseconds, { reduced, full }; empty as long as nothing was timed.
function accountOf(account, full, spent, name) {
  const tokens = account.pieces.length, last = account.lengths.at(-1);
  const rows = [
    ["answer", account.label, full?.[0].label ?? "…", full ? same(account, full) : "…"],
    ["confidence", confidence(account.score), full ? confidence(full[0].score) : "…", ""],
    ["FLOPs", flops(account.flops), flops(account.flops_full), saved(account.flops, account.flops_full)],
    ["milliseconds", middle(spent.reduced), middle(spent.full), spent.full.length ? saved(median(spent.reduced), median(spent.full)) : "…"],
    ["tokens in the last layer", `${last} of ${tokens}`, String(tokens), `${Math.round(100 * (1 - last / tokens))} %`],
  ];
  const heads = [name, "full length", "saved"].map((title) => make("th", { scope: "col" }, title));
  const body = rows.map(([title, ...cells]) => make("tr", {}, make("th", { scope: "row" }, title),
    cells.map((cell, column) => make("td", { class: column === 2 ? "saved" : null }, make("bdi", {}, visible(cell))))));
  return make("table", { class: "account" }, make("caption", { class: "hidden" }, "Reduced beside full length"),
    make("thead", {}, make("tr", {}, make("td"), heads)), make("tbody", {}, body));
}

const howTimed = (spent) => "Full length is the same weights with nothing removed, run on the same text just now. "
  + (spent.full.length ? `Milliseconds are the server's: median of ${spent.full.length}, in turns.` : "Milliseconds are being measured.");

const middle = (values) => (values.length ? milliseconds(median(values)) : "…");

const saved = (less, all) => (less <= all ? `${Math.round(100 * (1 - less / all))} %, ${times(all / less)}` : `none, ${times(less / all)} as much`);

const same = (account, full) => (isQuantity() ? `${Math.abs(account.score - full[0].score).toFixed(3)} apart`
  : full[0].label === account.label ? "same answer" : "another answer");
