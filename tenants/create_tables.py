"""Create the tables of many models in one step of a migration (docs/adr/0089-one-rendering-of-the-models.md)."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import CreateModel
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState


class CreateTables(Operation):
    """The final tables of models that these operations describe together; only for a migration that creates them all.

    Django makes its copies of all related models again after each operation, which is most of what a fresh database
    costs. Here they are made once, after the last. So a CreateModel creates its table with what the operations after it
    add: fields, indexes and constraints.
    """

    reversible = False

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = operations

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        state.__dict__.pop("apps", None)  # Django's cached copies: made again when next asked for
        for operation in self.operations:
            operation.state_forwards(app_label, state)

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        for operation in self.operations:
            if isinstance(operation, CreateModel):
                operation.database_forwards(app_label, schema_editor, from_state, to_state)

    def describe(self) -> str:
        return "Create the tables of all models"
