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
  return [title, make("table", { class: "scores" }, make("caption", { class: "hidden" }, "Confidence of each label"), make("tbody", {}, rows))];
}

// `spent` holds lists of milliseconds, { reduced, full }; empty as long as nothing was timed.
function accountOf(account, full, spent, name) {
  const heads = ["", "answer", "confidence", "FLOPs", "ms", "tokens in last layer"];
  const body = [
    [name, account.label, confidence(account.score), flops(account.flops), middle(spent.reduced), `${account.lengths.at(-1)} of ${account.pieces.length}`],
    ["full length", full?.[0].label ?? "…", full ? confidence(full[0].score) : "…", flops(account.flops_full), middle(spent.full), String(account.pieces.length)],
    ["saved", full ? same(account, full) : "…", "", saved(account.flops, account.flops_full),
      spent.full.length ? saved(median(spent.reduced), median(spent.full)) : "…", share(account)],
  ];
  const rows = body.map(([title, ...cells], index) => make("tr", { class: index === 2 ? "saved" : null }, make("th", { scope: "row" }, title),
    cells.map((cell, column) => make("td", { class: column ? "number" : null }, make("bdi", {}, visible(cell))))));
  return make("table", { class: "account" },
    make("caption", {}, "Beside the full model: the same weights with nothing removed, run on the same text just now. ",
      spent.full.length ? `ms: median of ${spent.full.length}, in turns, on the server.` : "ms: being timed."),
    make("thead", {}, make("tr", {}, heads.map((title, column) => make(title ? "th" : "td", { scope: title ? "col" : null, class: column > 1 ? "number" : null }, title)))),
    make("tbody", {}, rows));
}

const middle = (values) => (values.length ? milliseconds(median(values)) : "…");

const saved = (less, all) => (less <= all ? `${Math.round(100 * (1 - less / all))} %, ${times(all / less)}` : `none, ${times(less / all)} more`);

const same = (account, full) => (isQuantity() ? `${Math.abs(account.score - full[0].score).toFixed(3)} apart`
  : full[0].label === account.label ? "same answer" : "another answer");

const share = (account) => `${Math.round(100 * (1 - account.lengths.at(-1) / account.pieces.length))} %`;
