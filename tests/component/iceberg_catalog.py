"""An Iceberg catalog in memory, for tests: one pointer a table, swapped by compare-and-set.

pyiceberg's own needs a database library. Files and metadata are real ones, in a folder; what a test
does not need raises.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table


class MemoryCatalog(MetastoreCatalog):
    """Namespaces and tables of one test."""

    def __init__(self, warehouse: str) -> None:
        super().__init__("memory", warehouse=warehouse)
        self.namespaces: dict[Any, dict[str, str]] = {}
        self.pointers: dict[Any, str] = {}
        self.commit_count = 0

    def create_namespace(self, namespace: Any, properties: Any = None) -> None:
        name = Catalog.identifier_to_tuple(namespace)
        if name in self.namespaces:
            raise NamespaceAlreadyExistsError(namespace)
        self.namespaces[name] = dict(properties or {})

    def load_namespace_properties(self, namespace: Any) -> dict[str, str]:
        try:
            return self.namespaces[Catalog.identifier_to_tuple(namespace)]
        except KeyError:
            raise NoSuchNamespaceError(namespace) from None

    def create_table(self, identifier: Any, schema: Any, *args: Any, **more: Any) -> Table:
        if Catalog.identifier_to_tuple(identifier) in self.pointers:
            raise TableAlreadyExistsError(identifier)
        staged = self._create_staged_table(identifier, schema, *args, **more)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        self.pointers[Catalog.identifier_to_tuple(identifier)] = staged.metadata_location
        return self.load_table(identifier)

    def load_table(self, identifier: Any) -> Table:
        name = Catalog.identifier_to_tuple(identifier)
        if name not in self.pointers:
            raise NoSuchTableError(identifier)
        location = self.pointers[name]
        io = self._load_file_io(location=location)
        metadata = FromInputFile.table_metadata(io.new_input(location))
        return Table(name, metadata, location, io, self)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        self.commit_count += 1
        current = self.load_table(table.name())
        staged = self._update_and_stage_table(current, table.name(), requirements, updates)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        name = table.name()
        if self.pointers[name] != current.metadata_location:
            raise CommitFailedException("updated meanwhile")
        self.pointers[name] = staged.metadata_location
        return CommitTableResponse.model_validate(
            {"metadata": staged.metadata, "metadata-location": staged.metadata_location}
        )

    def _absent(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    drop_namespace = drop_table = drop_view = list_namespaces = list_tables = list_views = _absent
    load_view = register_table = register_view = rename_table = view_exists = _absent
    update_namespace_properties = _absent
