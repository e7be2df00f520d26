// <x-chart-tools>: one bar for all charts of the page.
import { texts } from "../texts";
import { downloadLink } from "../button";
import { change, settings } from "./page-settings";
import { csvAddress } from "./series";

class ChartTools extends HTMLElement {
  private readonly log = toggle(texts.chart.logScale, settings.log);
  private readonly clip = toggle(texts.chart.clip, settings.clip);
  private readonly delta = toggle(texts.chart.delta, settings.delta);
  private readonly showPressed = (): void => {
    for (const name of ["log", "clip", "delta"] as const) this[name].setAttribute("aria-pressed", String(settings[name]));
  };

  connectedCallback(): void {
    document.addEventListener("chartsettings", this.showPressed); // a chart changes some, too
    if (this.childElementCount) return;
    this.append(this.axis(), this.smoothing());
    for (const name of ["log", "clip", ...("compares" in this.dataset ? (["delta"] as const) : [])] as const) {
      this[name].addEventListener("click", () => change({ [name]: !settings[name] }));
      this.append(this[name]);
    }
    if (this.dataset.job) this.append(downloadLink(csvAddress(this.dataset.job), texts.chart.downloadAll, texts.chart.csv));
    if (!("serverSearch" in this.dataset)) this.append(this.find()); // where there are more than the page shows, the server finds them
  }

  disconnectedCallback(): void {
    document.removeEventListener("chartsettings", this.showPressed);
  }

  private axis(): HTMLElement {
    const group = document.createElement("span");
    group.className = "segments";
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", texts.chart.axis);
    for (const value of ["step", "time", "relative"] as const) {
      const made = toggle(texts.chart.axes[value], settings.x === value);
      made.className = "";
      made.addEventListener("click", () => {
        change({ x: value });
        for (const one of group.querySelectorAll("button")) one.setAttribute("aria-pressed", String(one === made));
      });
      group.append(made);
    }
    return group;
  }

  private smoothing(): HTMLElement {
    const group = document.createElement("label");
    group.className = "group";
    const input = document.createElement("input");
    Object.assign(input, { type: "range", min: "0", max: "0.99", step: "0.01", value: String(settings.smooth), className: "range" });
    const shown = document.createElement("output");
    shown.className = "range-value";
    shown.textContent = settings.smooth.toFixed(2);
    input.addEventListener("input", () => {
      shown.textContent = Number(input.value).toFixed(2);
      change({ smooth: Number(input.value) });
    });
    group.append(texts.chart.smoothing, input, shown);
    return group;
  }

  private find(): HTMLElement {
    const input = document.createElement("input");
    Object.assign(input, { type: "search", className: "input", placeholder: texts.chart.find, value: settings.find });
    input.setAttribute("aria-label", texts.chart.find);
    input.addEventListener("input", () => change({ find: input.value.trim() }));
    return input;
  }
}

function toggle(words: string, pressed: boolean): HTMLButtonElement {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "button small";
  made.textContent = words;
  made.setAttribute("aria-pressed", String(pressed));
  return made;
}

customElements.define("x-chart-tools", ChartTools);
