// The page that an invitation's link opens: name and one-time password are behind its #, which no server sees. They go
// into the form and out of the address, so that they stay in no history.
export {};

const form = document.querySelector<HTMLFormElement>("[data-from-link]");
const [username = "", secret = ""] = location.hash.slice(1).split("/");
if (form && secret) {
  (form.elements.namedItem("username") as HTMLInputElement).value = decodeURIComponent(username);
  (form.elements.namedItem("password") as HTMLInputElement).value = secret;
  history.replaceState(null, "", location.pathname);
  form.querySelector("button")?.focus();
}
