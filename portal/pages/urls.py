"""Addresses of the pages; the address is the full state of a view (filters, tab, zoom, line)."""

from django.urls import path

from portal.pages import auth, jobs, new_job, overview

urlpatterns = [
    path("login", auth.Login.as_view(), name="login"),
    path("logout", auth.Logout.as_view(), name="logout"),
    path("", auth.home, name="home"),
    path("t/<slug:slug>/", overview.overview, name="overview"),
    path("t/<slug:slug>/jobs", jobs.listing, name="jobs"),
    path("t/<slug:slug>/jobs/new", new_job.new_job, name="job-new"),
    path("t/<slug:slug>/jobs/halt", jobs.halt_many, name="jobs-halt"),
]
