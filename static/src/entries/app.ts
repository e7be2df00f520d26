// What every page has: the connection, the clock, the theme button, menus, keys, the focus, forms that lose nothing.
import { startBars } from "../ts/bars";
import { startConnection } from "../ts/connection";
import { startFocus } from "../ts/focus";
import { startForms } from "../ts/forms";
import { startMenus } from "../ts/menus";
import { startPasskeys } from "../ts/passkeys";
import { startShortcuts } from "../ts/shortcuts";
import { startSubmit } from "../ts/submit";
import { startThemeToggle } from "../ts/theme";
import { startClock } from "../ts/time";

startThemeToggle();
startBars();
startConnection();
startClock();
startFocus();
startForms();
startPasskeys();
startSubmit();
startMenus();
startShortcuts();
