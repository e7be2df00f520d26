// The job page: live header and cards, actions without a reload, log viewer, charts.
import "../ts/job-page";
import "../ts/log/x-log";
import "../ts/chart/x-chart";
import "../ts/chart/x-chart-tools";
