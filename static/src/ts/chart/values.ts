// The values of a chart as a table, for those who cannot see the picture or want the numbers.
import { metric, thousands } from "../format";
import { texts } from "../texts";
import type { Series } from "./series";
import type { Settings } from "./settings";
import { isThinned, type Line, type Table } from "./table";
import { inOrder, pointsOf, shortly } from "./words";

export interface Values {
  caption: string;
  head: string[];
  rows: string[][];
}

/** The newest rows of the table as text, at most this number. Rows of a thinned series stand for several points each. */
export function values(name: string, series: Series[], table: Table, settings: Settings, most: number): Values {
  const first = Math.max(0, table.x.length - most);
  const shown = table.lines.reduce((sum, line) => sum + line.raw.slice(first).filter((value) => value !== null).length, 0);
  const all = Math.max(shown, pointsOf(series));
  const column = (line: Line): string => shortly(table, line) || name;
  const heads = (line: Line): string[] => (isThinned(line) ? [column(line), texts.chart.least(column(line)), texts.chart.greatest(column(line))] : [column(line)]);
  const cells = (line: Line, at: number): string[] =>
    (isThinned(line) ? [line.raw[at], line.low[at], line.high[at]] : [line.raw[at]]).map((value) => metric(value));
  const place = (x: number): string => (settings.x === "time" ? new Date(x * 1000).toISOString().slice(0, 19) : thousands(x));
  return {
    caption: shown === all ? texts.chart.allPoints(all) : texts.chart.somePoints(shown, all),
    head: [settings.x !== "step" ? texts.chart.timeColumn : inOrder(series) ? texts.chart.orderColumn : texts.chart.stepColumn, ...table.lines.flatMap(heads)],
    rows: table.x
      .slice(first)
      .map((x, at) => [place(x), ...table.lines.flatMap((line) => cells(line, first + at))])
      .reverse(),
  };
}

export function valuesTable(name: string, { caption, head, rows }: Values): HTMLElement {
  const box = document.createElement("div");
  box.className = "data-table";
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", texts.chart.values(name));
  const table = document.createElement("table");
  table.createCaption().textContent = caption;
  const first = table.createTHead().insertRow();
  for (const title of head) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.className = "number";
    cell.textContent = title;
    first.append(cell);
  }
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const text of row) {
      const cell = line.insertCell();
      cell.className = "number";
      cell.textContent = text;
    }
  }
  box.append(table);
  return box;
}
