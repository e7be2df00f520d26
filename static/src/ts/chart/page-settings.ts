// The settings of this page's charts. The address carries them, so that a view can be shared.
import { changed, searchOf, settingsOf, type Settings } from "./settings";

export const settings: Settings = settingsOf(location.search);

export function change(changes: Partial<Settings>): void {
  Object.assign(settings, changed(settings, changes));
  history.replaceState(null, "", location.pathname + searchOf(settings, location.search) + location.hash);
  document.dispatchEvent(new CustomEvent("chartsettings", { detail: Object.keys(changes) }));
}
