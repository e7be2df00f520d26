"""The page of a new job: where it is, where its submit leads, and the text of its editor."""

from __future__ import annotations

import re

from playwright.sync_api import Page

NEW = "/t/vision-lab/jobs/new"
JOB_PAGE = re.compile(r"/jobs/[0-9a-z]{12}$")


def yaml_of(page: Page) -> str:
    return page.locator("textarea[name=spec]").input_value()
