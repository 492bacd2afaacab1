// The dial: a slider over the points that were measured on dev, with what each lost there and costs here.

const ALIGNED = 12; // so many points fit above their columns

class DialView {
  constructor(place, moved, timeAll) {
    const { operating_points: points, aliases, dev, latencies_ms: latencies, scale, reduced } = server.info.adapler;
    Object.assign(this, { place, points, dev, latencies, moved });
    this.times = new Map();
    this.names = new Map(points.map((point) => [point.name, Object.keys(aliases).filter((alias) => aliases[alias] === point.name)]));
    if (!points.length) {
      place.replaceChildren(make("p", { class: "dim" }, ...absent(reduced)));
      return;
    }
    const now = scale ?? 1;
    const apart = points.map((point) => Math.abs(point.scale - now) + (point.escalate === null ? 0 : 1000));
    this.build(apart.indexOf(Math.min(...apart)), timeAll);
  }

  build(first, timeAll) {
    const id = ownId("dial");
    this.slider = make("input", { type: "range", id, min: 0, max: this.points.length - 1, step: 1 });
    this.slider.value = first;
    this.readout = make("p", { class: "readout" });
    this.table = make("table", { class: "points" });
    this.all = make("button", { type: "button", class: "small" }, "Time every point");
    this.all.addEventListener("click", timeAll);
    this.slider.addEventListener("input", () => { this.show(); this.moved(); });
    const title = make("div", { class: "line" }, make("label", { for: id }, "Dial"), make("span", { class: "ends dim" }, "careful ← → fast"), this.all);
    const track = make("div", { class: "track" }, this.slider);
    const wide = make("div", { class: this.points.length <= ALIGNED ? "aligned" : "scroll" }, track, this.table);
    wide.style.setProperty("--points", this.points.length);
    this.place.replaceChildren(title, wide, this.readout);
    this.show();
  }

  get point() { return this.points.length ? this.points[Number(this.slider.value)] : null; }

  get name() { return this.point?.name ?? null; }

  // Whether there is such a point.
  choose(name) {
    const index = this.points.findIndex((point) => point.name === name);
    if (index < 0) return false;
    this.slider.value = index;
    this.show();
    return true;
  }

  timed(name, spent) { this.times.set(name, spent); if (this.points.length) this.show(); }

  forget() { this.times.clear(); if (this.points.length) this.show(); }

  show() {
    const { point } = this;
    const words = this.inWords(point);
    this.slider.setAttribute("aria-valuetext", `${point.name}: ${words.join(", ")}`);
    const also = this.names.get(point.name).concat(point.scale === 1 && point.escalate === null ? ["trained"] : []);
    this.readout.replaceChildren(make("b", {}, point.name), also.length ? ` (${also.join(", ")})` : "", ` · ${words.join(" · ")}`);
    this.table.replaceChildren(...this.rows());
  }

  inWords(point) {
    const words = [`${lossOf(point)} lost on dev`, `${times(point.flops_speedup)} fewer FLOPs there`];
    if (this.dev) words[0] += ` (${this.dev.metric} ${number(100 * point.score, 1)}, ${number(this.dev.n)} texts)`;
    if (this.latencies[point.name] !== undefined) words.push(`${milliseconds(this.latencies[point.name])} ms a text on this machine (doctor)`);
    if (point.escalate !== null) words.push(`below ${point.escalate} given again carefully`);
    return words;
  }

  rows() {
    const rows = [
      ["point", (point) => point.name],
      ["dev loss, points", (point) => signed(point.loss_points)],
      ["FLOPs on dev", (point) => times(point.flops_speedup)],
    ];
    if (Object.keys(this.latencies).length) rows.push(["ms, doctor", (point) => (point.name in this.latencies ? milliseconds(this.latencies[point.name]) : "")]);
    rows.push(["ms, this text", (point) => (this.times.has(point.name) ? milliseconds(this.times.get(point.name)) : "·")]);
    return rows.map(([name, cell], row) => make("tr", {}, make("th", { scope: "row" }, name), this.points.map((point, index) => {
      const made = make(row ? "td" : "th", { class: point === this.point ? "now" : null, scope: row ? null : "col" }, cell(point));
      made.addEventListener("click", () => { this.slider.value = index; this.show(); this.moved(); this.slider.focus(); });
      return made;
    })));
  }
}

const signed = (points) => (points <= -0.005 ? "−" : "") + Math.abs(points).toFixed(2);

const lossOf = (point) => `${signed(point.loss_points)} points`;

function absent(reduced) {
  if (!reduced) return ["This model removes nothing, so there is no dial. Make a reduced one: ", make("code", {}, "adapler train"), "."];
  return ["This model has no measured points to slide over: it runs as trained. Measure them with ",
    make("code", {}, "adapler dial MODEL --data DEV"), " and start the server again."];
}
