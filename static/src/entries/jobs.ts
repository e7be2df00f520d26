// The jobs list, the overview and the cluster: what stays live on them.
import { startJobsList } from "../ts/jobs-list";

startJobsList();
