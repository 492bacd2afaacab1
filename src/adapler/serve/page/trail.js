// A token's way through the layers: under the pointer, or with the arrow keys.

class Trail {
  constructor(place, said) {
    Object.assign(this, { place, said, picture: null, at: null });
    place.addEventListener("pointerover", ({ target }) => this.follow(target.dataset.place));
    place.addEventListener("pointerleave", () => this.follow(undefined));
    place.addEventListener("blur", () => this.follow(undefined));
    place.addEventListener("keydown", (event) => this.step(event));
  }

  step(event) {
    const moves = { ArrowRight: 1, ArrowLeft: -1 };
    if (!(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey || !this.picture) return;
    event.preventDefault();
    const on = moves[event.key] * (this.picture.rtl ? -1 : 1);
    const place = this.at === null ? (on > 0 ? 0 : this.picture.tokens - 1) : this.at + on;
    this.follow(String(Math.min(this.picture.tokens - 1, Math.max(0, place))));
    this.place.querySelector(".trail")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  follow(place) {
    for (const marked of this.place.querySelectorAll(".trail")) marked.classList.remove("trail");
    this.at = place === undefined ? null : Number(place);
    this.said.textContent = this.at === null ? "" : this.inWords(this.at);
    if (this.at !== null) for (const marked of this.place.querySelectorAll(`[data-place="${this.at}"]`)) marked.classList.add("trail");
  }

  inWords(place) {
    const pieces = this.picture.layers.map((layer) => layer.words.flatMap((word) => word.pieces).find((piece) => piece.place === place));
    const shares = pieces.filter((piece) => piece.share !== null).map((piece) => piece.share.toFixed(2));
    const left = pieces.findIndex((piece) => piece.fate === "left");
    const end = left < 0 ? "goes through all layers" : `leaves in front of layer ${left + 1}`;
    return `\u2068${pieces[0].text}\u2069: ${end}${shares.length ? `; contribution ${shares.join(", ")} equal shares` : ""}`;
  }
}
