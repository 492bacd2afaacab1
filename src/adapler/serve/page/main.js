// The page as a whole.

const notice = (words) => { find("#notice").textContent = words; };
const tell = (words) => { find("#told").textContent = words; };
const panes = [new Pane("Text")];

function askForKey() {
  find("#key-form").hidden = false;
  find("#key-show").setAttribute("aria-expanded", "true");
  find("#key").focus();
}

function compare(on) {
  if (on === panes.length > 1) return;
  if (on) {
    const pane = new Pane("Right");
    panes.push(pane);
    pane.put(panes[0].state);
    if (panes[0].dial) {
      const { points, name } = panes[0].dial;
      pane.open(points[Math.min(points.length - 1, points.findIndex((point) => point.name === name) + 1)]?.name);
    }
  } else {
    panes.pop().running?.abort();
  }
  find("#compare").setAttribute("aria-pressed", String(on));
  panes[0].name(on ? "Left" : "Text");
  document.body.classList.toggle("two", on);
  find("#panes").replaceChildren(...panes.map((pane) => pane.root));
  panes[0].fit();
}

function restore(states) {
  compare(states.length > 1);
  const known = states.map((state, index) => {
    panes[index].put(state);
    return panes[index].open(state.point);
  });
  if (known.includes(false)) notice("The link names a point that this model does not have; the dial stands where the server's does.");
  panes.forEach((pane) => pane.run());
}

function readLink() {
  try {
    return linked();
  } catch {
    notice("The link cannot be read; it may have been cut short on its way.");
    return null;
  }
}

async function connect() {
  notice("");
  try {
    await getInfo();
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    if (error.status === 401) askForKey();
    return notice(error.message);
  }
  describe(server.info);
  const states = readLink();
  if (states) restore(states);
  else {
    for (const pane of panes) { pane.open(pane.dial?.name); }
    if (!panes[0].text.value) panes[0].put(EXAMPLES[0]);
    panes.forEach((pane) => pane.run());
  }
  openRace();
  return undefined;
}

function describe({ served_model_name: name, model_type: type, max_input_length: most, version, adapler }) {
  const labels = Object.values(type.classifier.id2label);
  const shown = labels.slice(0, 6).join(", ") + (labels.length > 6 ? " …" : "");
  find("#model").textContent = visible(name);
  document.title = `${visible(name)} · adapler`;
  find("#facts").textContent = visible(`${labels.length} labels: ${shown} · ${adapler.layers} layers · reads ${most} tokens · `
    + `${adapler.runtime}, ${adapler.threads} ${adapler.threads === 1 ? "thread" : "threads"} · adapler ${version}`);
}

find("#panes").append(panes[0].root);
find("#compare").addEventListener("click", () => { dropLink(); compare(panes.length < 2); if (panes[1]) panes[1].run(); });
find("#link").addEventListener("click", () => copyLink(panes.map((pane) => pane.state)));
find("#key-show").addEventListener("click", () => {
  const form = find("#key-form");
  form.hidden = !form.hidden;
  find("#key-show").setAttribute("aria-expanded", String(!form.hidden));
  if (!form.hidden) find("#key").focus();
});
find("#key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const typed = find("#key").value.trim();
  if (/[^\x21-\x7e]/.test(typed)) return notice("A key is one word of plain letters, digits and signs.");
  server.key = typed;
  find("#key").value = "";
  find("#key-form").hidden = true;
  find("#key-show").setAttribute("aria-expanded", "false");
  panes[0].text.focus();
  return connect();
});
find("#race-form").addEventListener("submit", (event) => { event.preventDefault(); runRace(); });
find("#race-stop").addEventListener("click", () => race.running?.abort());
addEventListener("hashchange", () => { if (location.hash.startsWith(MARK) && server.info) { const states = readLink(); if (states) restore(states); } });
addEventListener("resize", later(() => panes.forEach((pane) => pane.fit()), 150));
connect();
