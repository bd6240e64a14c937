// A sheet whose horizontal axis are the places of a row, a stretch of which is in view.

class StepSheet extends Sheet {
  constructor(canvas, margin, { from, to }) {
    super(canvas, margin);
    Object.assign(this, { from, to, step: (this.right - this.left) / (to - from) });
  }

  x(index) {
    return this.left + (index - this.from + 0.5) * this.step;
  }

  indexAt(x) {
    const index = this.from + Math.floor((x - this.left) / this.step);
    return Math.max(this.from, Math.min(this.to - 1, index));
  }

  /** Numbers of the places at round distances, counted from 1. */
  numbers(what) {
    const rough = 90 / this.step; // pixels from number to number
    const ten = 10 ** Math.floor(Math.log10(rough));
    const every = Math.max(
      1,
      [1, 2, 5, 10].map((part) => part * ten).find((each) => each >= rough),
    );
    for (let number = Math.max(every, Math.ceil((this.from + 1) / every) * every); number <= this.to; number += every)
      this.word(number.toLocaleString("en"), Math.min(this.x(number - 1), this.right - 12), this.height - 7, "center");
    this.word(what, this.left - 6, this.height - 7, "right");
  }
}
