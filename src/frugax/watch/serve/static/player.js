// Moves through numbered frames: by a slider, by keys, and in time.

export class Player {
  at = -1;
  count = 0;
  #timer = null;

  /**
   * `show(number)` shows a frame, `told(isPlaying)` is called when that changes;
   * `perSecond()` is how many frames to play, and `isBusy()` whether to wait for one.
   */
  constructor(slider, button, { show, told, perSecond, isBusy = () => false }) {
    Object.assign(this, { slider, button, show, told, perSecond, isBusy });
    slider.addEventListener("input", () => this.go(Number(slider.value)));
    button.addEventListener("click", () => this.toggle());
  }

  get isPlaying() {
    return this.#timer !== null;
  }

  /** Go to a frame, or to the nearest that there is. */
  go(wanted) {
    if (!this.count) return;
    this.at = Math.min(Math.max(wanted, 0), this.count - 1);
    this.slider.value = this.at;
    this.show(this.at);
  }

  toggle() {
    if (this.isPlaying) return this.pause();
    if (!this.count) return;
    if (this.at >= this.count - 1) this.go(0);
    const next = () => {
      this.#timer = setTimeout(next, 1000 / this.perSecond());
      if (this.isBusy()) return;
      if (this.at >= this.count - 1) return this.pause();
      this.go(this.at + 1);
    };
    this.#timer = setTimeout(next, 1000 / this.perSecond());
    this.told(true);
  }

  pause() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.told(false);
  }

  /** Move by a key, if it is one that moves. */
  press(event) {
    const by = event.shiftKey ? 10 : 1;
    const to = {
      ArrowLeft: this.at - by, ArrowRight: this.at + by, ArrowDown: this.at - by, ArrowUp: this.at + by,
      PageDown: this.at - 10, PageUp: this.at + 10, Home: 0, End: Infinity,
    }[event.key];
    if (event.key === " ") this.toggle();
    else if (to === undefined) return;
    else { this.pause(); this.go(to); }
    event.preventDefault(); // the slider, the button and the page would move as well
  }
}
