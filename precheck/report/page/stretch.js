// A long row of which a stretch is in view, and moving along it by pointer and keys.

const CLICK = 5; // pixels that a pointer may move and still have clicked
const CLOSEST = 8; // as few as can be in view, where there are as many

class Stretch {
  constructor(length) {
    Object.assign(this, { length, from: 0, to: length });
  }

  show(from, to) {
    this.from = Math.max(0, Math.min(from, this.length - 1));
    this.to = Math.max(this.from + Math.min(CLOSEST, this.length - this.from), Math.min(to, this.length));
  }

  /** The place that zooming keeps where it is: what is chosen, or else the middle. */
  hold(chosen) {
    return chosen >= 0 ? chosen : Math.floor((this.from + this.to) / 2);
  }

  zoom(factor, around) {
    const size = Math.max(Math.min(CLOSEST, this.length), Math.min(this.length, Math.round((this.to - this.from) * factor)));
    const share = (around - this.from) / Math.max(1, this.to - this.from);
    this.from = Math.max(0, Math.min(this.length - size, Math.round(around - share * size)));
    this.to = this.from + size;
  }

  /** The place there is for the one asked for, brought into view. */
  reach(index) {
    const wanted = Math.max(0, Math.min(this.length - 1, index));
    if (wanted < this.from || wanted >= this.to) {
      const size = this.to - this.from;
      this.from = Math.max(0, Math.min(this.length - size, wanted - Math.floor(size / 2)));
      this.to = this.from + size;
    }
    return wanted;
  }
}

/** Runs the act of a key that was pressed alone; whether there is one. */
function pressed(event, acts) {
  if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(acts, event.key)) return;
  event.preventDefault();
  acts[event.key]();
}

/** What keys do to a stretch. `reach(index)` chooses, `zoom(factor)` zooms; both draw. */
function strides(stretch, chosen, { reach, zoom }) {
  const page = Math.max(1, Math.round((stretch.to - stretch.from) / 20));
  return {
    ArrowLeft: () => reach(chosen - 1),
    ArrowRight: () => reach(chosen + 1),
    PageUp: () => reach(chosen - page),
    PageDown: () => reach(chosen + page),
    Home: () => reach(0),
    End: () => reach(Infinity),
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    0: () => zoom(Infinity),
  };
}

/** The pointer on a chart: {ready(), tip(x), hide(), draw(), sheet(), click(x), select(from, to), all()}; sheet() as Sheet has it. */
function followPointer(canvas, acts) {
  const at = (event) => event.clientX - canvas.getBoundingClientRect().left;
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = at(event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!acts.ready()) return;
    if (drag === null) return acts.tip(at(event));
    acts.draw();
    const { pen, top, bottom, colours } = acts.sheet();
    pen.fillStyle = colours.accent;
    pen.globalAlpha = 0.15;
    pen.fillRect(Math.min(drag, at(event)), top, Math.abs(at(event) - drag), bottom - top);
    pen.globalAlpha = 1;
  });
  canvas.addEventListener("pointerup", (event) => {
    const start = drag;
    drag = null;
    if (start === null || !acts.ready()) return;
    if (Math.abs(at(event) - start) < CLICK) return acts.click(at(event));
    acts.select(...[start, at(event)].sort((a, b) => a - b));
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("pointerleave", acts.hide);
  canvas.addEventListener("dblclick", acts.all);
}

/** Puts words beside a point of a chart, on the side that has room. */
function tipAt(box, x, y, width, words) {
  box.hidden = false;
  box.replaceChildren(...words);
  box.style.top = y + "px";
  box.style.left = x < width / 2 ? x + 12 + "px" : "auto";
  box.style.right = x < width / 2 ? "auto" : width - x + 12 + "px";
}

/** Buttons that zoom: `zoom(factor)` as for keys. */
function zoomButtons(host, what, zoom) {
  const button = (sign, words, factor) =>
    el("button", { type: "button", class: "plain", "aria-label": words, title: words, onclick: () => zoom(factor) }, sign);
  host.replaceChildren(button("+", "Zoom in", 0.5), button("−", "Zoom out", 2), button("all", what, Infinity));
}
