// data-fetch="/address" data-every="30": content that is fetched after the page, and again at this interval in seconds
// while the page is visible.
import { fetchPage, morphContent } from "./parts";

function start(element: HTMLElement): void {
  const refresh = async (): Promise<void> => {
    if (document.hidden) return;
    const fetched = await fetchPage(element.dataset.fetch ?? "");
    if (fetched) morphContent(element, fetched);
  };
  setInterval(() => void refresh(), Number(element.dataset.every) * 1000);
  document.addEventListener("visibilitychange", () => void refresh());
  void refresh();
}

export function startFetched(): void {
  for (const element of document.querySelectorAll<HTMLElement>("[data-fetch]")) start(element);
}
