// The admin console: cards that are fetched later, the quota matrix, and the slug that a name suggests.
import { startFetched } from "../ts/fetched";
import { startMatrix } from "../ts/quota-matrix";

startFetched();
startMatrix();

const name = document.getElementById("name") as HTMLInputElement | null;
const slug = document.querySelector<HTMLInputElement>("[data-slug-of]");
if (name && slug) {
  let own = slug.value !== "";
  slug.addEventListener("input", () => (own = slug.value !== ""));
  name.addEventListener("input", () => {
    if (own) return;
    const plain = name.value.normalize("NFKD").toLowerCase().replace(/[^a-z0-9]+/g, "-");
    slug.value = plain.replace(/^-+|-+$/g, "").slice(0, 40);
  });
}
