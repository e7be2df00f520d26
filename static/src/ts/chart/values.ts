// The values of a chart as a table, for those who cannot see the picture or want the numbers.
import { texts } from "../texts";
import type { Values } from "./words";

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
