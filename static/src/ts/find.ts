// A field that filters the rows of a page while a person types. The address keeps the text; without scripts the server
// filters the same rows by it.
import { texts } from "./texts";

export function startFind(): void {
  const field = document.getElementById("find");
  const status = document.getElementById("found");
  if (!(field instanceof HTMLInputElement) || !status) return;
  const narrow = (): void => {
    const sought = field.value.trim().toLowerCase();
    const rows = [...document.querySelectorAll<HTMLElement>("[data-search-text]")];
    for (const row of rows) row.hidden = !row.dataset.searchText?.includes(sought);
    const count = rows.filter((row) => !row.hidden).length;
    status.textContent = sought ? texts.forms.found(count, rows.length) : "";
  };
  field.addEventListener("input", () => {
    narrow();
    const address = new URL(location.href);
    if (field.value.trim()) address.searchParams.set("q", field.value.trim());
    else address.searchParams.delete("q");
    history.replaceState(null, "", address);
  });
  field.form?.addEventListener("submit", (event) => event.preventDefault());
  narrow();
}
