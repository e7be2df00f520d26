// A field that filters the rows of a page (components/find.html).
import { startFind } from "../ts/find";

startFind();
