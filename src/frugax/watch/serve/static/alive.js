// Whether the run is alive, and whether we still hear from the server.

const WORDS = {
  running: "running", quiet: "quiet", finished: "finished", finishing: "finishing",
  closed: "ended", waiting: "waiting", died: "died", unreadable: "cannot be read",
};
const SILENT_AFTER_MS = 12000;
const find = (id) => document.getElementById(id);

export function duration(seconds) {
  if (!(seconds >= 0)) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return (seconds * 1e6).toPrecision(3) + " µs";
  if (seconds < 1) return Number((seconds * 1e3).toPrecision(3)) + " ms";
  if (seconds < 60) return Number(seconds.toPrecision(3)) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min " + Math.round(seconds % 60) + " s";
  if (seconds < 86400) return Math.floor(seconds / 3600) + " h " + Math.round((seconds % 3600) / 60) + " min";
  return Number((seconds / 86400).toPrecision(3)) + " d";
}

export class Alive {
  #heard = performance.now();
  #ahead = 0; // seconds that the server's clock is ahead of ours
  #state = null;
  #offline = "";

  constructor() {
    setInterval(() => this.show(), 1000);
  }

  hear(now) {
    this.#heard = performance.now();
    this.#offline = "";
    if (now) this.#ahead = now - Date.now() / 1000;
  }

  lost(why) {
    this.#offline = why;
    this.show();
  }

  told(state) {
    this.#state = state;
    this.hear();
    this.show();
  }

  show() {
    const silent = performance.now() - this.#heard > SILENT_AFTER_MS && !document.hidden;
    const offline = this.#offline || (silent ? "The server does not answer." : "");
    const alive = this.#state?.alive;
    const kind = offline ? "offline" : (alive?.state ?? "waiting");
    const word = offline ? "no connection" : (WORDS[alive?.state] ?? "connecting");
    const pill = find("alive");
    if (!pill.classList.contains(kind)) pill.className = "pill " + kind;
    put(find("alive-word"), word);
    const grown = this.#state?.grown_at;
    const age = grown ? Date.now() / 1000 + this.#ahead - grown : NaN;
    const shown = !offline && age >= 0 && ["running", "quiet", "died"].includes(kind);
    put(find("alive-age"), shown ? (age < 3 ? "just now" : duration(Math.round(age)) + " ago") : "");
    put(find("alive-why"), offline ? offline + " The page goes on by itself when it is back." : (alive?.why ?? ""));
  }
}

/** Set a text only if it is another, so that screen readers are told of news alone. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
