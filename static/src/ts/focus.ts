// The focus is never lost to the body. When the focused element is removed, disabled or hidden by what it did, as the Halt
// button is by the halt, the nearest thing around it that is left takes the focus, so that Tab continues there.

const FOCUSABLE = "a[href],button,input,select,textarea,summary,[tabindex]";

/** The last focused element with all that contain it, and those of the opener of the dialog that it is in. */
let trail: Element[] = [];
let looking = 0;

function chain(element: Element): Element[] {
  const found: Element[] = [];
  for (let at: Element | null = element; at && at !== document.body; at = at.parentElement) found.push(at);
  return found;
}

function canFocus(element: Element): boolean {
  return element.isConnected && element.checkVisibility() && element.getBoundingClientRect().height > 0 && !element.matches(":disabled") && !element.closest("[inert]");
}

function remember({ target }: FocusEvent): void {
  if (!(target instanceof Element)) return;
  const dialog = target.closest("dialog");
  const outside = dialog ? trail.filter((element) => !dialog.contains(element)) : [];
  trail = [...chain(target), ...outside];
}

/** Who clicks beside everything takes the focus away on purpose: the element could still have it. Browsers report that an
 * element loses the focus before it is removed, so this is looked at afterward. */
function forget({ target, relatedTarget }: FocusEvent): void {
  if (relatedTarget || !(target instanceof Element) || !document.hasFocus()) return;
  queueMicrotask(() => {
    if (canFocus(target) && document.activeElement === document.body) trail = [];
  });
}

function restore(): void {
  looking = 0;
  if (!trail.length || (document.activeElement !== document.body && document.activeElement !== null)) return;
  const place = trail.find(canFocus);
  if (!place) return;
  if (!place.matches(FOCUSABLE)) {
    place.setAttribute("tabindex", "-1");
    place.addEventListener("blur", () => place.removeAttribute("tabindex"), { once: true });
  }
  (place as HTMLElement).focus({ preventScroll: true });
}

export function startFocus(): void {
  document.addEventListener("focusin", remember);
  document.addEventListener("focusout", forget);
  const look = (): void => {
    if (!looking && document.activeElement === document.body && trail.length) looking = requestAnimationFrame(restore);
  };
  new MutationObserver(look).observe(document.body, { subtree: true, childList: true, attributeFilter: ["disabled", "hidden", "open", "inert"] });
  document.addEventListener("close", look, true);
  document.addEventListener("toggle", look, true);
}
