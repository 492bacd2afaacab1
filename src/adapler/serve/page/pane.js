// A pane: a text, the dial's point, and what the model made of it. Two of them stand side by side.

const ROUNDS = 7; // each of them once reduced and once at full length
const SETTLE = 150, TYPED = 700; // ms of rest before a slider's or a writer's change is run
const LIVE = 20000; // characters up to which typing runs by itself

class Pane {
  constructor(title) {
    this.root = find("#pane").content.firstElementChild.cloneNode(true);
    for (const [name, what] of [["text", "Text"], ["second-text", "Second text"]]) {
      const id = ownId(name);
      find(`.${name}`, this.root).id = id;
      find(name === "text" ? ".text-label" : ".second-label", this.root).htmlFor = id;
    }
    this.text = find(".text", this.root);
    this.second = find(".second-text", this.root);
    this.pair = find(".pair", this.root);
    this.examples = find(".examples", this.root);
    this.result = find(".result", this.root);
    this.spent = { reduced: [], full: [] };
    this.account = this.full = this.running = null;
    this.name(title);
    find(".legend-place", this.root).replaceChildren(legend());
    find(".account", this.root).setAttribute("aria-label", "Reduced beside full length");
    find(".picture", this.root).setAttribute("aria-label", "Layer by layer; arrow keys follow a token");
    this.examples.append(make("option", { value: "" }, "pick …"), ...EXAMPLES.map((each, index) => make("option", { value: index }, each.name)));
    this.trail = new Trail(find(".picture", this.root), find(".trail-said", this.root));
    this.listen();
  }

  listen() {
    const typed = later(() => this.run(), TYPED);
    this.moved = later(() => this.run({ quiet: true }), SETTLE);
    const changed = () => {
      this.examples.value = "";
      dropLink();
      this.count();
      if (this.text.value.length + this.second.value.length <= LIVE) typed();
      else typed.cancel();
    };
    this.text.addEventListener("input", changed);
    this.second.addEventListener("input", changed);
    this.pair.addEventListener("change", () => { this.showSecond(); this.count(); dropLink(); this.run(); });
    this.examples.addEventListener("change", () => {
      const example = EXAMPLES[Number(this.examples.value)];
      if (this.examples.value === "") return;
      this.put({ text: example.text, second: example.second });
      dropLink();
      this.run();
    });
    find(".ask", this.root).addEventListener("submit", (event) => { event.preventDefault(); typed.cancel(); this.run(); });
    this.root.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); typed.cancel(); this.run(); }
    });
    find(".save-html", this.root).addEventListener("click", () => this.saveHtml());
    find(".save-png", this.root).addEventListener("click", () => this.savePng());
  }

  name(title) {
    find("h2", this.root).textContent = title;
    this.root.setAttribute("aria-label", title);
  }

  // Once the model is known; `point` by name where there is a wish.
  open(point) {
    this.dial = new DialView(find(".dial", this.root), () => { dropLink(); this.busy(true); this.moved(); }, () => this.timeAll());
    return point == null || this.dial.choose(point);
  }

  put({ text, second }) {
    this.text.value = text;
    this.second.value = second ?? "";
    this.pair.checked = second !== undefined;
    this.showSecond();
    this.count();
  }

  get state() {
    return { text: this.text.value, ...(this.pair.checked ? { second: this.second.value } : {}), point: this.dial?.name ?? null };
  }

  get inputs() {
    const text = whole(this.text.value);
    return this.pair.checked ? [text, whole(this.second.value)] : text;
  }

  get reducedName() { return this.dial.name ?? "as trained"; }

  showSecond() { find(".second", this.root).hidden = !this.pair.checked; }

  count() {
    const letters = this.text.value.length + (this.pair.checked ? this.second.value.length : 0);
    const much = letters > LIVE ? ": press Run when it is whole" : "";
    find(".count", this.root).textContent = letters ? `${number(letters)} characters${much}` : "";
  }

  // What the result shows already is said to those who do not see it alone.
  say(words, { shown = false } = {}) {
    const said = find(".said", this.root);
    said.classList.toggle("hidden", shown);
    said.textContent = words;
  }

  complain(words) {
    find(".wrong", this.root).textContent = words;
    this.result.classList.toggle("old", Boolean(words)); // what still stands there is of another text
    if (words) this.say("");
  }

  // What stands there is not yet of what was asked last.
  busy(is) { this.root.setAttribute("aria-busy", String(is)); }

  // Ask anew; an answer that is overtaken meanwhile is thrown away. A `quiet` run follows the slider.
  async run({ quiet = false } = {}) {
    this.running?.abort();
    const running = (this.running = new AbortController());
    const { signal } = running;
    this.complain("");
    this.moved.cancel();
    this.busy(false);
    if (!server.info) { await connect(); return; }
    const inputs = this.inputs;
    if (![inputs].flat().some((text) => text)) {
      this.result.hidden = true;
      this.account = null;
      this.say("The text is empty. Type one, or pick an example.");
      return;
    }
    if (!quiet) { this.dial.forget(); this.spent.full = []; this.full = null; }
    this.spent.reduced = [];
    this.busy(true);
    try {
      if (server.info.adapler.reduced) await this.explain(inputs, signal);
      else await this.predictAlone(inputs, signal);
    } catch (error) {
      if (!signal.aborted) this.fail(error, running);
    } finally {
      if (this.running === running) this.busy(false);
    }
  }

  async explain(inputs, signal) {
    const { content } = await post("/explain", { inputs, ...this.dialled() }, signal);
    if (signal.aborted) return;
    this.account = content;
    this.picture = layersOf(content);
    this.show();
    this.say(`${visible(content.label)}, ${confidence(content.score)}. ${content.lengths.at(-1)} of ${content.pieces.length} tokens reach the last layer.`, { shown: true });
    await this.time(inputs, signal);
  }

  // Of a model that removes nothing there is the answer alone.
  async predictAlone(inputs, signal) {
    const { content, seconds } = await post("/predict", { inputs }, signal);
    this.result.hidden = true;
    this.say(`${visible(content[0].label)}, ${confidence(content[0].score)}, in ${milliseconds(1000 * spent(seconds))} ms. This model removes nothing, so there are no layers to show.`);
  }

  async time(inputs, signal) {
    const full = [], reduced = [];
    for (let round = 0; round < ROUNDS; round++) {
      await inTurn(async () => {
        for (const list of round % 2 ? [reduced, full] : [full, reduced]) {
          signal.throwIfAborted();
          const wish = list === full ? { point: LOOK.full } : this.dialled();
          const { content, seconds } = await post("/predict", { inputs, ...wish }, signal);
          list.push(1000 * spent(seconds));
          if (list === full) this.full = content;
        }
      });
      this.spent = { reduced, full };
      if (this.dial.name) this.dial.timed(this.dial.name, median(reduced));
      this.showAccount();
    }
  }

  async timeAll() {
    if (!this.account || !this.dial.points.length) return this.say("Run a text first.");
    this.running?.abort();
    const running = (this.running = new AbortController());
    const inputs = this.inputs;
    const found = new Map(this.dial.points.map((point) => [point.name, []]));
    try {
      for (let round = 0; round < ROUNDS; round++) {
        for (const [name, list] of found) {
          const { seconds } = await inTurn(() => post("/predict", { inputs, point: name }, running.signal));
          list.push(1000 * spent(seconds));
          this.dial.timed(name, median(list));
        }
      }
      this.say(`Every point was timed ${ROUNDS} times on this text.`);
    } catch (error) {
      if (!running.signal.aborted) this.fail(error, running);
    }
    return undefined;
  }

  dialled() { return this.dial.name ? { point: this.dial.name } : {}; }

  fail(error, running) {
    if (!(error instanceof Trouble)) throw error;
    this.complain(error.message);
    if (error.status === 401) askForKey();
    if (error.status === 429) {
      this.complain(`${error.message} It will be asked again.`);
      setTimeout(() => this.running === running && this.run(), 1000 * error.wait);
    }
  }

  show() {
    this.result.hidden = false;
    this.showAccount();
    find(".notes", this.root).replaceChildren(...notesOf(this.account).map((note) => make("p", { class: "note" }, note)));
    this.trail.picture = this.picture;
    this.trail.follow(undefined);
    this.fit();
    find(".left-where .scroll", this.root).replaceChildren(leftWhere(this.picture));
  }

  showAccount() {
    find(".answer", this.root).replaceChildren(...answerOf(this.account, this.full));
    find(".account", this.root).replaceChildren(accountOf(this.account, this.full, this.spent, `reduced, ${this.reducedName}`));
    find(".beside .how", this.root).textContent = howTimed(this.spent);
  }

  fit() { if (this.account && !this.result.hidden) showWaterfall(find(".picture", this.root), this.picture); }

  get title() {
    const { label, score, flops: less, flops_full: all, pieces } = this.account;
    return visible(`${label} ${confidence(score)} · ${pieces.length} tokens · ${times(all / less)} fewer FLOPs · ${this.reducedName}`);
  }

  get fileName() { return `adapler-${this.reducedName.replace(/[^\w.+-]+/g, "-")}`; }

  saveHtml() {
    const parts = [".notes", ".outcome", ".legend-place", ".picture", ".left-where"].map((part) => find(part, this.root));
    download(savedPage(this.title, parts), `${this.fileName}.html`);
  }

  async savePng() {
    download(await savedImage(this.picture, this.title, notesOf(this.account)), `${this.fileName}.png`);
  }
}
