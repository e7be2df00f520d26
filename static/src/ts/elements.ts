// Custom elements whose scripts are loaded once a page has one of them.

type Loads = Record<string, () => Promise<unknown>>;

/** loads: the module that defines an element, by the element's name. Elements that come in with a job's change count, too. */
export function loadElements(loads: Loads): void {
  const waiting = new Map(Object.entries(loads));
  const look = (): void => {
    for (const [name, load] of waiting) {
      if (!document.querySelector(name)) continue;
      waiting.delete(name);
      load().catch(() => waiting.set(name, load)); // the server is down: with the next change
    }
  };
  look();
  document.addEventListener("jobchange", look);
}
