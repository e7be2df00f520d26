"""Addresses of the pages; the address is the full state of a view (filters, tab, zoom, line)."""

from django.urls import path, re_path

from portal.pages import auth, job, jobs, new_job, overview

JOB = r"t/(?P<slug>[-a-zA-Z0-9_]+)/jobs/(?P<job_id>[0-9a-z]{12})"

urlpatterns = [
    path("login", auth.Login.as_view(), name="login"),
    path("logout", auth.Logout.as_view(), name="logout"),
    path("", auth.home, name="home"),
    path("t/<slug:slug>/", overview.overview, name="overview"),
    path("t/<slug:slug>/jobs", jobs.listing, name="jobs"),
    path("t/<slug:slug>/jobs/new", new_job.new_job, name="job-new"),
    path("t/<slug:slug>/jobs/halt", jobs.halt_many, name="jobs-halt"),
    re_path(rf"^{JOB}$", job.page, name="job"),
    re_path(rf"^{JOB}/(?P<verb>halt|resume|cancel)$", job.act_or_ask, name="job-act"),
    re_path(rf"^{JOB}/(?P<tab>metrics|logs|learners|events|checkpoints|spec)$", job.page, name="job-tab"),
]
