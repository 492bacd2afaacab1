// The race: the same texts at full length and reduced, each lane on its own clock.

class Lane {
  constructor(name, wish) {
    Object.assign(this, { name, wish, done: 0, clock: 0, came: 0, kept: 0, labels: [], track: [[0, 0]] });
    this.bar = make("span", { class: "runner", role: "progressbar", "aria-label": name, "aria-valuemin": 0 }, make("i"));
    this.said = make("span", { class: "pace" });
    this.root = make("div", { class: "lane" }, make("span", { class: "lane-name" }, name), this.bar, this.said);
  }

  async step(texts, signal) {
    const { content, seconds, header } = await patient(() => post("/predict", { inputs: texts.map((text) => [text]), ...this.wish }, signal), signal);
    this.done += texts.length;
    this.clock += spent(seconds);
    this.came += Number(header("x-adapler-tokens-in"));
    this.kept += Number(header("x-adapler-tokens-kept"));
    this.labels.push(...content.map((scores) => scores[0].label));
    this.track.push([this.clock, this.done]);
  }

  get pace() { return this.clock ? this.done / this.clock : 0; }

  show(total) {
    this.bar.setAttribute("aria-valuemax", total);
    this.bar.setAttribute("aria-valuenow", this.done);
    this.bar.firstChild.style.inlineSize = `${(100 * this.done) / total}%`;
    this.said.textContent = `${number(this.done)} of ${number(total)} · ${this.clock.toFixed(2)} s · ${number(this.pace)} texts/s`;
  }
}

// A server that is busy says when to come back.
async function patient(work, signal) {
  for (let tries = 0; ; tries++) {
    try {
      return await work();
    } catch (error) {
      if (error.status !== 429 || tries === 5) throw error;
      await pause(1000 * error.wait, signal);
    }
  }
}

const race = { running: null };

function openRace() {
  const { operating_points: points, reduced } = server.info.adapler;
  const select = find("#race-point");
  const names = points.map((point) => point.name).filter((name) => name !== LOOK.full);
  select.replaceChildren(...(names.length ? names.map((name) => make("option", {}, name)) : [make("option", { value: "" }, "as trained")]));
  select.value = panes[0].dial.name ?? "";
  find("#race").hidden = !reduced;
}

function raceTexts() {
  const lines = find("#race-lines").value.split("\n").map((text) => whole(text.trim())).filter(Boolean);
  const count = Number(find("#race-count").value);
  return lines.length ? lines.slice(0, Math.max(count, 1000)) : madeUp(count);
}

async function runRace() {
  race.running?.abort();
  const running = (race.running = new AbortController());
  const texts = raceTexts();
  const point = find("#race-point").value;
  const lanes = [new Lane("full length", { point: LOOK.full }), new Lane(point ? `reduced, ${point}` : "reduced", point ? { point } : {})];
  find("#race-track").hidden = false;
  find("#race-track .lanes").replaceChildren(...lanes.map((lane) => lane.root));
  find("#race-wrong").textContent = "";
  find("#race-said").textContent = `${number(texts.length)} texts are on their way.`;
  find("#race-go").disabled = true;
  find("#race-stop").disabled = false;
  try {
    await inTurn(() => contest(lanes, batched(texts), texts.length, running.signal));
    find("#race-said").textContent = verdict(lanes);
  } catch (error) {
    if (running.signal.aborted) find("#race-said").textContent = "Stopped.";
    else if (!(error instanceof Trouble)) throw error;
    else {
      find("#race-said").textContent = "";
      find("#race-wrong").textContent = error.message;
      if (error.status === 401) askForKey();
    }
  } finally {
    find("#race-go").disabled = false;
    find("#race-stop").disabled = true;
  }
}

async function contest(lanes, batches, total, signal) {
  for (const lane of lanes) await new Lane("", lane.wish).step(batches[0], signal); // warm, off the clock
  const left = lanes.map((lane) => ({ lane, next: 0 }));
  while (left.length) {
    signal.throwIfAborted();
    const turn = left.reduce((one, other) => (other.lane.clock < one.lane.clock ? other : one));
    await turn.lane.step(batches[turn.next++], signal);
    if (turn.next === batches.length) left.splice(left.indexOf(turn), 1);
    lanes.forEach((lane) => lane.show(total));
    drawCourse(lanes, total);
  }
}

const BATCH = 16; // small enough to see them run

// As many texts a request as run together, and no more bytes than half of what the server takes.
function batched(texts) {
  const { max_client_batch_size: most, adapler: { payload_limit: bytes } } = server.info;
  const batches = [[]];
  let size = 0;
  for (const text of texts) {
    const more = 6 * text.length + 8;
    if (batches.at(-1).length && (batches.at(-1).length === Math.min(most, BATCH) || size + more > bytes / 2)) { batches.push([]); size = 0; }
    batches.at(-1).push(text);
    size += more;
  }
  return batches;
}

function verdict([full, reduced]) {
  const agreed = full.labels.filter((label, index) => label === reduced.labels[index]).length;
  const ratio = full.clock / reduced.clock;
  const told = ratio >= 1 ? `${times(ratio)} as fast as full length` : `${times(1 / ratio)} slower than full length`;
  const answers = isQuantity() ? "" : ` ${number(agreed)} of ${number(full.done)} answers are the same.`;
  return `Reduced is ${told}: ${number(reduced.done)} texts in ${reduced.clock.toFixed(2)} s against ${full.clock.toFixed(2)} s.${answers} `
    + `Of ${number(reduced.came)} tokens ${number(reduced.kept)} reached the last layer.`;
}

function drawCourse(lanes, total) {
  const [left, right, top, bottom] = [46, 708, 10, 122];
  const longest = Math.max(...lanes.map((lane) => lane.clock), 0.01);
  const x = (seconds) => left + ((right - left) * seconds) / longest;
  const y = (texts) => bottom - ((bottom - top) * texts) / total;
  const marks = [
    draw("path", { class: "grid", d: `M${left} ${top}V${bottom}H${right}` }),
    draw("text", { x: left - 6, y: top + 8, "text-anchor": "end" }, String(total)),
    draw("text", { x: left - 6, y: bottom, "text-anchor": "end" }, "0"),
    draw("text", { x: right, y: bottom + 18, "text-anchor": "end" }, `${longest.toFixed(2)} s on its own clock`),
    draw("text", { x: left, y: bottom + 18 }, "texts answered"),
  ];
  const lines = lanes.map((lane, index) => draw("polyline", {
    class: index ? "course-reduced" : "course-full", points: lane.track.map(([seconds, texts]) => `${x(seconds).toFixed(1)},${y(texts).toFixed(1)}`).join(" "),
  }));
  find("#race-track .course").replaceChildren(...marks, ...lines);
}
