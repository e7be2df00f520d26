// Keys inside the quota matrix: arrows move between tenants, + and - change by one, Esc undoes the cell.
// What a change means comes from the server (htmx, #review); this file only moves and marks.

function mark(field: HTMLInputElement): void {
  field.closest("td")?.classList.toggle("chg", field.value !== field.dataset.before);
}

function set(field: HTMLInputElement, value: number): void {
  field.value = String(Math.max(0, value));
  mark(field);
  field.dispatchEvent(new Event("change", { bubbles: true }));
}

function neighbour(field: HTMLInputElement, step: number): HTMLInputElement | null {
  const cell = field.closest("td");
  const row = cell?.parentElement as HTMLTableRowElement | null;
  const beside = (from: Element | null | undefined): Element | null => (step > 0 ? from?.nextElementSibling : from?.previousElementSibling) ?? null;
  let other = beside(row) as HTMLTableRowElement | null;
  while (other?.hidden) other = beside(other) as HTMLTableRowElement | null; // left out by what is sought
  if (!cell || !other) return null;
  return other.cells[cell.cellIndex]?.querySelector<HTMLInputElement>("input[data-before]") ?? null;
}

function press(event: KeyboardEvent, field: HTMLInputElement): boolean {
  const now = Number(field.value) || 0;
  switch (event.key) {
    case "ArrowUp":
    case "ArrowDown": {
      const next = neighbour(field, event.key === "ArrowDown" ? 1 : -1);
      next?.focus();
      next?.select();
      return true;
    }
    case "+":
      set(field, now + 1);
      return true;
    case "-":
      set(field, now - 1);
      return true;
    case "Enter":
      field.dispatchEvent(new Event("change", { bubbles: true }));
      return true;
    case "Escape":
      set(field, Number(field.dataset.before));
      return true;
    default:
      return false;
  }
}

export function startMatrix(): void {
  const table = document.getElementById("matrix");
  if (!table) return;
  table.addEventListener("keydown", (event) => {
    const field = event.target;
    if (!(field instanceof HTMLInputElement) || field.dataset.before === undefined) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (press(event, field)) event.preventDefault();
  });
  table.addEventListener("input", (event) => {
    if (event.target instanceof HTMLInputElement) mark(event.target);
  });
  // A review swaps the cells, not their fields: those follow what the server has said beneath them.
  document.addEventListener("htmx:afterSettle", () => {
    for (const field of table.querySelectorAll<HTMLInputElement>("input[data-before]")) {
      if (field.closest("td")?.querySelector(".bad")) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
    }
  });
}
