// The new-job page.
import { startNewJob } from "../ts/new-job/page";

startNewJob();
