// The cookie of the theme: over https no other host of the domain can set or read it in place of ours.
import assert from "node:assert/strict";
import { test } from "node:test";
import { nextTheme, themeCookie } from "../../static/src/ts/theme";

test("over https the cookie has the prefix that browsers protect, and is Secure", () => {
  assert.equal(themeCookie("dark", "__Host-"), "__Host-theme=dark; path=/; SameSite=Lax; max-age=31536000; Secure");
  assert.equal(themeCookie("", "__Host-"), "__Host-theme=; path=/; SameSite=Lax; max-age=0; Secure");
  assert.equal(themeCookie("dark", ""), "theme=dark; path=/; SameSite=Lax; max-age=31536000");
});

test("only that cookie counts over https", () => {
  assert.equal(nextTheme("theme=dark", "__Host-"), "light");
  assert.equal(nextTheme("a=b; __Host-theme=light; theme=dark", "__Host-"), "dark");
  assert.equal(nextTheme("__Host-theme=dark", "__Host-"), "");
  assert.equal(nextTheme("theme=dark", ""), "");
  assert.equal(nextTheme("", ""), "light");
});
