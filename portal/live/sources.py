"""All sources, by topic."""

from __future__ import annotations

from portal.live.frames import ChannelSource
from portal.live.protocol import Topic
from portal.live.read_capacity import ClusterSource, QuotaSource
from portal.live.read_jobs import JobSource, TenantJobsSource
from portal.live.read_logs import LogSource
from portal.live.read_metrics import MetricChannelSource

SOURCES: dict[Topic, ChannelSource] = {
    Topic.JOB: JobSource(),
    Topic.LOGS: LogSource(),
    Topic.METRICS: MetricChannelSource(),
    Topic.JOBS: TenantJobsSource(),
    Topic.QUOTAS: QuotaSource(),
    Topic.CLUSTER: ClusterSource(),
}
