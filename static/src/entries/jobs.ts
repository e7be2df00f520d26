// The live parts of the jobs list, the overview and the cluster page.
import { startJobsList } from "../ts/jobs-list";

startJobsList();
