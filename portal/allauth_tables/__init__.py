"""Migrations of django-allauth's tables: one each in place of its fifteen, which every cold start would pass.

Named in MIGRATION_MODULES. `makemigrations --check` finds what a new version of django-allauth changes.
"""
