"""[data]: which samples, how they are cut into shards; and [data.schema]: what is declared of samples in files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from common.datasets.catalogue import DATA_SETS
from common.datasets.schema import Column, DataSchema
from common.datasets.source import DECLARED, FILE, LOCAL, FileSource, Source, check_path, refuse_one_file
from common.errors import ConfigurationError
from common.mechanism.sampler import SAMPLERS, Sampler
from common.scenario.tables import Table, made_part, named, options_given

Number = Annotated[float, Field(allow_inf_nan=False)]
Range = Annotated[tuple[Number, Number], Field(strict=False)]  # a TOML array is a list
Name = Annotated[str, Field(min_length=1, max_length=200)]
Names = Annotated[tuple[Name, ...], Field(strict=False)]

_TRUNCATED = "truncated-poisson"  # the sampler that the declared key belongs to
_CUT = ("partition", "alpha", "power", "labels_per_edge", "holdout")


class ColumnTable(Table):
    """One of data.schema.columns: numbers with a range, or categories."""

    later = ("range", "categories", "other", "fill")

    name: Name = Field(..., description="of the column in the file")
    range: Range | None = Field(None, description="numbers are clipped to it and scaled to [0, 1]")
    categories: Names = Field((), max_length=1000, description="in this order")
    other: bool = Field(False, description="a place for what is no declared category; else that is an error")
    fill: Number | str | None = Field(None, description="for an empty cell; absent: that is an error")


class SchemaTable(Table):
    """[data.schema]: how files become samples. Nothing of it is learnt from records."""

    later = (
        *("shape", "classes", "class_names", "target_range", "columns", "label", "inputs", "input_range"),
        *("group", "ignore", "resize", "records_at_least"),
    )

    kind: Literal["array", "table", "images"] = Field(
        ..., description="array: .npz; table: .csv or .parquet; images: a folder for each class"
    )
    shape: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False)] = Field(
        (), max_length=8, description="of one sample; of a table as its columns make it"
    )
    classes: int = Field(0, ge=0, description="how many; absent with real targets")
    class_names: Names = Field((), max_length=1000, description="of labels 0, 1, …")
    target_range: Range | None = Field(None, description="real targets are clipped to it")
    columns: Annotated[tuple[ColumnTable, ...], Field(strict=False)] = Field(
        (), max_length=2000, description="of a table"
    )
    label: str = Field("", max_length=200, description="column or array of labels; absent: label, labels")
    inputs: Name = Field("inputs", description="array of inputs")
    input_range: Range | None = Field(None, description="of an array: clipped to it and scaled to [0, 1]")
    group: Name | None = Field(None, description="column or array that says whose record it is")
    ignore: Names = Field((), max_length=2000, description="columns that are not read")
    resize: bool = Field(False, description="bring images to the shape; else another size is an error")
    records_at_least: int = Field(
        0, ge=0, lt=1 << 31, description="set = local: the fewest records of any edge; 0: not stated"
    )

    def check(self) -> None:
        try:
            _ = self.declared
        except ConfigurationError as error:
            raise ConfigurationError(f"data.schema.{error}") from error

    @property
    def declared(self) -> DataSchema:
        """What is declared, in the readers' own form."""
        columns = tuple(Column(**dict(column)) for column in self.columns)
        return DataSchema(**{**dict(self), "columns": columns})


def _path(key: str) -> AfterValidator:
    return AfterValidator(lambda path: None if path is None else check_path(key, path))


class DataTable(Table):
    """[data]: which records, and beside that the options of the sampler that is named."""

    model_config = ConfigDict(extra="allow")  # options of the sampler: `drawn` checks them
    later = ("train_path", "test_path", "power", "largest_batch", "declared")

    set: Annotated[str, named("data.set", (*DATA_SETS, *DECLARED))] = Field(
        "mnist-5k",
        min_length=1,
        description="see `mapa data list`; file, local (with data.schema); or package.module:Class",
    )
    train_path: Annotated[str | None, _path("data.train_path")] = Field(
        None, max_length=400, description="set = file: the training samples, under the data directory"
    )
    test_path: Annotated[str | None, _path("data.test_path")] = Field(
        None, max_length=400, description="set = file: the test samples; absent: no metric is claimed"
    )
    partition: Literal["iid", "dirichlet", "label", "group", "sizes-dirichlet", "sizes-power", "shared"] = (
        Field("iid", description="how the data set is cut into shards; shared: all edges draw from all of it")
    )
    alpha: float = Field(
        0.5,
        ge=1e-4,
        le=1e6,
        allow_inf_nan=False,
        description="concentration of the partitions dirichlet and sizes-dirichlet",
    )
    power: float = Field(
        1.0, ge=0, le=10, allow_inf_nan=False, description="of sizes-power: n_k falls with (k + 1)^-power"
    )
    labels_per_edge: int = Field(2, ge=1, le=1000, description="of the label partition")
    sampler: str = Field(
        "poisson",
        min_length=1,
        max_length=200,
        description="how an edge draws a batch: poisson, truncated-poisson, shuffled, with-replacement or"
        " package.module:Class; see docs/privacy.md",
    )
    largest_batch: int | None = Field(
        None, ge=1, le=1_000_000, description="B_max of sampler = truncated-poisson"
    )
    holdout: int = Field(
        0, ge=0, description="training records in no shard, evaluated on instead of the test set: for tuning"
    )
    declared: SchemaTable | None = Field(None, alias="schema", description="of set = file or local")

    @property
    def drawn(self) -> Sampler:
        """The sampler with its options."""
        if self.largest_batch is not None and self.sampler in SAMPLERS.names and self.sampler != _TRUNCATED:
            raise ValueError(
                f"data.largest_batch: goes with data.sampler = {_TRUNCATED!r}, and is needed there"
            )
        known = [field.alias or key for key, field in type(self).model_fields.items()]
        shared = ("largest_batch",)
        made: Sampler = made_part(SAMPLERS, self.sampler, options_given(self, shared), known, shared)
        return made

    def check(self) -> None:
        drawn = self.drawn
        if (self.declared is not None) != (self.set in DECLARED):
            raise ValueError(f"data.schema: goes with data.set = {FILE!r} or {LOCAL!r}, and is needed there")
        if (self.train_path is not None) != (self.set == FILE):
            raise ValueError(f"data.train_path: goes with data.set = {FILE!r}, and is needed there")
        if self.test_path is not None and self.set != FILE:
            raise ValueError(f"data.test_path: goes with data.set = {FILE!r}")
        if self.train_path is not None and self.test_path is not None:
            refuse_one_file(self.train_path, self.test_path)
        if self.set == LOCAL and drawn.amplification().largest is not None:
            raise ValueError(
                f"data.sampler = {self.sampler!r}: not with data.set = {LOCAL!r}, where n_k is not known to the run:"
                " a smaller n_k bounds no other one's ε"
            )
        if self.set == LOCAL:
            self._refuse_a_cut()
        elif self.declared is not None and self.declared.records_at_least:
            raise ValueError(f"data.schema.records_at_least: goes with data.set = {LOCAL!r}")

    def _refuse_a_cut(self) -> None:
        """Refuse keys that mean nothing where every edge brings all its records; defaults say nothing."""
        for key in _CUT:
            value, default = getattr(self, key), type(self).model_fields[key].default
            if value != default:
                raise ValueError(
                    f"data.{key} = {value!r}: means nothing with data.set = {LOCAL!r}, where an edge has all the"
                    " records that it brings"
                )
        if self.declared is not None and self.declared.group is not None:
            raise ValueError(
                f"data.schema.group = {self.declared.group!r}: means nothing with data.set = {LOCAL!r}"
            )

    @property
    def source(self) -> Source:
        """What is loaded: a name, or the files."""
        if self.train_path is None or self.declared is None:
            return self.set
        return FileSource(train=self.train_path, test=self.test_path, schema=self.declared.declared)
