// The cookie of the theme: over https no other host of the domain can set or read it in place of ours.
import assert from "node:assert/strict";
import { test } from "node:test";
import { chosenTheme, themeCookie } from "../../static/src/ts/theme";

test("over https the cookie has the prefix that browsers protect, and is Secure", () => {
  const set = themeCookie("dark", true);
  assert.match(set, /^__Host-theme=dark; path=\/; SameSite=Lax; max-age=\d+; Secure$/);
  assert.match(themeCookie("", true), /^__Host-theme=; .*max-age=0; Secure$/);
  assert.doesNotMatch(themeCookie("dark", false), /Secure|__Host/);
});

test("only that cookie counts over https", () => {
  assert.equal(chosenTheme("theme=dark", true), undefined);
  assert.equal(chosenTheme("a=b; __Host-theme=light; theme=dark", true), "light");
  assert.equal(chosenTheme("theme=dark", false), "dark");
});
