"""[data]: which samples, how they are cut into shards; and [data.schema]: what is declared of samples in files."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from common.datasets.catalogue import DATA_SETS
from common.datasets.schema import Column, DataSchema
from common.datasets.source import DECLARED, FILE, LOCAL, FileSource, Source, check_path, refuse_one_file
from common.errors import ConfigurationError
from common.mechanism.sampler import SAMPLERS, Sampler
from common.scenario.tables import Table, lasting, made_part, named, options_given

Number = Annotated[float, Field(allow_inf_nan=False)]
Range = Annotated[list[Number], Field(min_length=2, max_length=2)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


_TRUNCATED = "truncated-poisson"  # the sampler that the declared key belongs to
_CUT = ("partition", "alpha", "power", "labels_per_edge", "holdout")


class _Declared(Table):
    """A table of which only what is said is written down."""

    @model_serializer(mode="wrap")
    def _said(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        defaults = {key: field.get_default(call_default_factory=True) for key, field in _fields(self)}
        return {key: value for key, value in write(self).items() if value != defaults[key]}


def _fields(table: Table) -> list[tuple[str, Any]]:
    return list(type(table).model_fields.items())


class ColumnTable(_Declared):
    """One of data.schema.columns: numbers with a range, or categories."""

    name: Name = Field(..., description="of the column in the file")
    range: Range | None = Field(None, description="numbers are clipped to it and scaled to [0, 1]")
    categories: list[Name] = Field(default_factory=list, max_length=1000, description="in this order")
    other: bool = Field(False, description="a place for what is no declared category; else that is an error")
    fill: Number | str | None = Field(None, description="for an empty cell; absent: that is an error")

    @property
    def declared(self) -> Column:
        return Column(
            name=self.name,
            range=_pair(self.range),
            categories=tuple(self.categories),
            other=self.other,
            fill=self.fill,
        )


class SchemaTable(_Declared):
    """[data.schema]: how files become samples. Nothing of it is learnt from records."""

    kind: Literal["array", "table", "images"] = Field(
        ..., description="array: .npz; table: .csv or .parquet; images: a folder for each class"
    )
    shape: list[Annotated[int, Field(ge=1)]] = Field(
        default_factory=list, max_length=8, description="of one sample; of a table as its columns make it"
    )
    classes: int = Field(0, ge=0, description="how many; absent with real targets")
    class_names: list[Name] = Field(default_factory=list, max_length=1000, description="of labels 0, 1, …")
    target_range: Range | None = Field(None, description="real targets are clipped to it")
    columns: list[ColumnTable] = Field(default_factory=list, max_length=2000, description="of a table")
    label: str = Field("", max_length=200, description="column or array of labels; absent: label, labels")
    inputs: Name = Field("inputs", description="array of inputs")
    input_range: Range | None = Field(None, description="of an array: clipped to it and scaled to [0, 1]")
    group: Name | None = Field(None, description="column or array that says whose record it is")
    ignore: list[Name] = Field(default_factory=list, max_length=2000, description="columns that are not read")
    resize: bool = Field(False, description="bring images to the shape; else another size is an error")
    records_at_least: int = Field(
        0, ge=0, lt=1 << 31, description="set = local: every edge has so many; 0: not said"
    )

    @model_validator(mode="after")
    def _sound(self) -> Self:
        try:
            _ = self.declared
        except ConfigurationError as error:
            raise ValueError(f"data.schema.{error}") from error
        return self

    @property
    def declared(self) -> DataSchema:
        """What is declared, in the readers' own form."""
        return DataSchema(
            kind=self.kind,
            shape=tuple(self.shape),
            classes=self.classes,
            class_names=tuple(self.class_names),
            target_range=_pair(self.target_range),
            columns=tuple(column.declared for column in self.columns),
            label=self.label,
            inputs=self.inputs,
            input_range=_pair(self.input_range),
            group=self.group,
            ignore=tuple(self.ignore),
            resize=self.resize,
            records_at_least=self.records_at_least,
        )


def _path(key: str) -> AfterValidator:
    def check(path: str | None) -> str | None:
        try:
            return None if path is None else check_path(key, path)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error

    return AfterValidator(check)


class DataTable(Table):
    """[data]: which records, and beside that the options of the sampler that is named."""

    model_config = ConfigDict(extra="allow")  # options of the sampler: `_sampler` checks them

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
    declared: SchemaTable | None = Field(None, alias="schema", description="of set = file or local")
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

    @model_validator(mode="after")
    def _sampler(self) -> Self:
        _ = self.drawn
        return self

    @property
    def drawn(self) -> Sampler:
        """The sampler with its options."""
        if self.largest_batch is not None and self.sampler in SAMPLERS.names and self.sampler != _TRUNCATED:
            raise ValueError(
                f"data.largest_batch: goes with data.sampler = {_TRUNCATED!r}, and is needed there"
            )
        known = [field.alias or key for key, field in type(self).model_fields.items()]
        made: Sampler = made_part(SAMPLERS, self.sampler, options_given(self, ("largest_batch",)), known)
        return made

    @model_validator(mode="after")
    def _declarations(self) -> Self:
        if (self.declared is not None) != (self.set in DECLARED):
            raise ValueError(f"data.schema: goes with data.set = {FILE!r} or {LOCAL!r}, and is needed there")
        if (self.train_path is not None) != (self.set == FILE):
            raise ValueError(f"data.train_path: goes with data.set = {FILE!r}, and is needed there")
        if self.test_path is not None and self.set != FILE:
            raise ValueError(f"data.test_path: goes with data.set = {FILE!r}")
        if self.train_path is not None and self.test_path is not None:
            try:
                refuse_one_file(self.train_path, self.test_path)
            except ConfigurationError as error:
                raise ValueError(str(error)) from error
        if self.set == LOCAL and self.drawn.amplification().largest is not None:
            raise ValueError(
                f"data.sampler = {self.sampler!r}: not with data.set = {LOCAL!r}, where n_k is not known to the run:"
                " a smaller n_k bounds no other one's ε"
            )
        if self.set == LOCAL:
            self._refuse_a_cut()
        elif self.declared is not None and self.declared.records_at_least:
            raise ValueError(f"data.schema.records_at_least: goes with data.set = {LOCAL!r}")
        return self

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

    @model_serializer(mode="wrap")
    def _lasting(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the keys that came later where they say nothing."""
        values = write(self)
        values["schema"] = values.pop("declared", values.get("schema"))
        later = {"train_path": None, "test_path": None, "schema": None, "power": 1.0, "largest_batch": None}
        return lasting(values, later)

    @property
    def source(self) -> Source:
        """What is loaded: a name, or the files."""
        if self.train_path is None or self.declared is None:
            return self.set
        return FileSource(train=self.train_path, test=self.test_path, schema=self.declared.declared)


def _pair(values: list[float] | None) -> tuple[float, float] | None:
    return None if values is None else (values[0], values[1])
