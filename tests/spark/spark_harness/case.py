"""A query of the differential suite: one choice for each thing that a windowed aggregation can vary in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from .record import Run
from .streams import StreamSpec

#: name -> (size, slide, start offset)
WINDOWS: dict[str, tuple[str, str | None, str | None]] = {
    "tumbling": ("1 minute", None, None),
    "tumbling_later": ("1 minute", "1 minute", "17 seconds"),
    "tumbling_earlier": ("1 minute", "1 minute", "-7 seconds"),
    "sliding": ("2 minutes", "30 seconds", None),
    "sliding_later": ("2 minutes", "1 minute", "45 seconds"),
    "uneven": ("100 seconds", "40 seconds", None),
    "uneven_earlier": ("50 seconds", "35 seconds", "-12 seconds"),
    "dense": ("5 minutes", "10 seconds", None),
    "millis": ("1500 milliseconds", "700 milliseconds", "123 milliseconds"),
    "days": ("7 days", "1 day", "5 hours"),
}

#: name -> grouping expressions in SQL. Names begin with k_, so that they are compared to the bit.
KEYS: dict[str, dict[str, str]] = {
    "none": {},
    "byte": {"k_byte": "byte"},
    "short": {"k_short": "short"},
    "int": {"k_int": "int"},
    "long": {"k_long": "long"},
    "float": {"k_float": "float"},
    "double": {"k_double": "double"},
    "string": {"k_str": "str"},
    "binary": {"k_bin": "bin"},
    "boolean": {"k_bool": "bool"},
    "date": {"k_date": "date"},
    "timestamp": {"k_tval": "tval"},
    "ntz": {"k_nval": "nval"},
    "dec10": {"k_dec10": "dec10"},
    "dec38": {"k_dec38": "dec38"},
    "daytime": {"k_daytime": "make_dt_interval(0, 0, 0, cast(dec10 / 1000 as decimal(18,6)))"},
    "yearmonth": {"k_yearmonth": "make_ym_interval(0, cast(short as int))"},
    "computed": {"k_computed": "upper(coalesce(str, concat('n', cast(bool as string))))"},
    "two": {"k_bool": "bool", "k_str": "substr(str, 1, 1)"},
    "three": {"k_short": "short", "k_dec38": "case when bool then dec38 end", "k_date": "case when bool then date end"},
}

#: name -> aggregate expressions in SQL. min_ and max_ are compared to the bit.
AGGREGATES: dict[str, dict[str, str]] = {
    "counts": {
        "n": "count(*)",
        "n_str": "count(str)",
        "n_ntz": "count(ntz)",
        "n_both": "count(int, dec38)",
        "n_one": "count(1)",
        "s_int": "sum(int)",
        "avg_long": "avg(long)",
    },
    "integers": {
        f"{f}_{t}": f"{f}({t})" for t in ("byte", "short", "int", "long") for f in ("sum", "avg", "min", "max")
    },
    "floats": {f"{f}_{t}": f"{f}({t})" for t in ("float", "double") for f in ("sum", "avg", "min", "max")},
    "decimals": {
        **{f"{f}_{t}": f"{f}({t})" for t in ("dec10", "dec38") for f in ("min", "max")},
        **{f"{f}_dec10": f"{f}(dec10)" for f in ("sum", "avg")},
        # As wide as decimals may be for their sums to have room; those of dec38 stay with Spark.
        **{f"{f}_dec28": f"{f}(cast(dec38 as decimal(28,3)))" for f in ("sum", "avg")},
        "n": "count(dec38)",
    },
    "times": {
        **{f"{f}_{t}": f"{f}({t})" for t in ("date", "tval", "nval", "ts") for f in ("min", "max")},
        "n_date": "count(date)",
        "n_tval": "count(tval)",
    },
    "strings": {
        **{f"{f}_{t}": f"{f}({t})" for t in ("str", "bin", "bool") for f in ("min", "max")},
        "n": "count(str)",
        "sum_short": "sum(short)",
        "max_date": "max(date)",
        "avg_dec10": "avg(dec10)",
    },
    "moments": {
        f"{f}_{t}": f"{f}({e})"
        for f in ("stddev_samp", "stddev_pop", "var_samp", "var_pop")
        for t, e in (("short", "short"), ("double", "double"), ("dec38", "dec38"))
    },
    "moments_mixed": {
        "sd_byte": "stddev(byte)",
        "vp_int": "var_pop(int)",
        "vs_long": "variance(long)",
        "sp_float": "stddev_pop(float)",
        "vs_dec10": "var_samp(dec10)",
        "n": "count(*)",
        "max_str": "max(str)",
    },
    "inputs": {
        "s_product": "sum(short * 3 + byte)",
        "avg_coalesce": "avg(coalesce(double, 0.5))",
        "max_length": "max(length(str))",
        "s_case": "sum(case when bool then dec10 else -dec10 end)",
        "min_text": "min(cast(long as string))",
        "s_square": "sum(dec10 * dec10)",
        "max_hour": "max(hour(tval))",
        "s_constant": "sum(2)",
        "n_mixed": "count(nullif(short, 0))",
    },
    "filters": {
        "n": "count(*)",
        "n_bool": "count(*) FILTER (WHERE bool)",
        "s_long": "sum(long) FILTER (WHERE short > 0)",
        "max_str": "max(str) FILTER (WHERE length(str) < 10)",
        "avg_dec": "avg(cast(dec38 as decimal(28,3))) FILTER (WHERE bool IS NULL)",
        "sd": "stddev(double) FILTER (WHERE double < 100)",
        "min_never": "min(int) FILTER (WHERE false)",
    },
    "results": {
        "ratio": "sum(long) / count(*)",
        "span": "max(double) - min(double)",
        "text": "concat('n=', cast(count(*) as string))",
        "max_mixed": "greatest(max(int), cast(sum(byte) as int))",
        "share": "sum(dec10) * 100 / count(dec10)",
        "cv": "stddev(short) / nullif(avg(short), 0)",
        "n_twice": "count(*) + count(*)",
        "max_day": "date_add(max(date), -1)",
    },
    "lists": {
        "n": "count(*)",
        "list": "concat_ws(',', sort_array(collect_list(cast(long as string))))",
        "some": "concat_ws(',', sort_array(collect_list(str) FILTER (WHERE bool)))",
        "set": "concat_ws(',', sort_array(collect_set(cast(dec10 as string))))",
        "middle": "median(double)",
        "low": "percentile(int, 0.25)",
        "sum_short": "sum(short)",
        "max_bin": "max(bin)",
    },
}

#: A predicate on the results of each of them that keeps some groups and drops others.
HAVING = {
    "counts": "n > 2",
    "lists": "n > 2",
    "integers": "sum_byte > 0",
    "floats": "max_float > 1",
    "decimals": "n > 1",
    "times": "n_date % 2 = 0",
    "strings": "n > 1",
    "moments": "stddev_samp_short is not null",
    "moments_mixed": "n > 2",
    "inputs": "n_mixed > 1",
    "filters": "n_bool > 0",
    "results": "n_twice > 2",
}

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

PROVIDERS: dict[str, dict[str, str]] = {
    "hdfs": {},
    "hdfs_snapshots": {"spark.sql.streaming.stateStore.minDeltasForSnapshot": "1"},
    "rocksdb": {
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
    },
    "rocksdb_changelog": {
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    },
}

#: Of each way to keep state, one of the other provider.
OTHER_PROVIDER = {
    "hdfs": "rocksdb_changelog",
    "hdfs_snapshots": "rocksdb",
    "rocksdb": "hdfs_snapshots",
    "rocksdb_changelog": "hdfs",
}


@dataclass(frozen=True)
class Case:
    """One query and how it is run. Every field is a name in one of the tables above, or says it itself."""

    window: str = "tumbling"
    mode: str = "append"
    key: str = "long"
    aggregate: str = "counts"
    watermark: str = "10 seconds"
    provider: str = "hdfs"
    partitions: str = "1"
    trigger: str = "available"
    sink: str = "foreach"
    time: str = "ts"
    zone: str = "UTC"
    base: str = "modern"
    files: str = "1"
    ansi: str = "true"
    api: str = "frame"
    having: str = "no"
    codegen: str = "off"  # compiled code takes a third more time; the covering designs have both
    reader: str = "columnar"
    idle_batch: str = "on"
    restart: str = "no"
    map_side: str = "auto"

    def __str__(self) -> str:
        return f"{self.window}-{self.mode}-{self.key}-{self.aggregate}"

    @property
    def late(self) -> bool | None:
        """Whether rows must be dropped. A week's window hardly ever has closed."""
        if self.watermark == "none" or self.mode == "complete":
            return False
        return None if self.window == "days" else True

    @property
    def spark_operators(self) -> tuple[str, ...]:
        """The stateful operators of the query as Spark runs it."""
        return ("stateStoreSave",)

    @property
    def stream(self) -> StreamSpec:
        if self.window == "days":
            day = 86_400_000_000
            return StreamSpec(base=self.base, files=int(self.files), step=2 * day, late_by=12 * day)
        rows = 40 if self.window == "dense" else 90
        return StreamSpec(base=self.base, files=int(self.files), rows=rows)

    @property
    def conf(self) -> Mapping[str, str]:
        return {
            **PROVIDERS[self.provider],
            "spark.sql.shuffle.partitions": self.partitions,
            "spark.sql.session.timeZone": self.zone,
            "spark.sql.ansi.enabled": self.ansi,
            "spark.sql.codegen.wholeStage": str(self.codegen == "on").lower(),
            "spark.sql.codegen.factoryMode": "FALLBACK" if self.codegen == "on" else "NO_CODEGEN",
            "spark.sql.parquet.enableVectorizedReader": str(self.reader == "columnar").lower(),
            "spark.sql.streaming.noDataMicroBatches.enabled": str(self.idle_batch == "on").lower(),
            "spark.gpuwin.mapside": self.map_side,
        }

    @property
    def how(self) -> Run:
        restart = frozenset({0, 2}) if self.restart == "yes" else frozenset()
        return Run(self.mode, self.trigger, self.sink, self.conf, restart)

    def query(self, spark: SparkSession, frame: DataFrame) -> DataFrame:
        """The query; called once for each start."""
        if self.watermark != "none":
            frame = frame.withWatermark(self.time, self.watermark)
        return self._sql(spark, frame) if self.api == "sql" else self._frame(frame)

    def window_column(self) -> Column:
        """The window as an expression of the DataFrame API."""
        size, slide, start = WINDOWS[self.window]
        return F.window(self.time, size, slide, start) if slide else F.window(self.time, size)

    def window_sql(self) -> str:
        """The window as an expression in SQL."""
        quoted = ", ".join(f"'{part}'" for part in WINDOWS[self.window] if part)
        return f"window({self.time}, {quoted})"

    def _frame(self, frame: DataFrame) -> DataFrame:
        window = self.window_column()
        keys: list[Column] = [F.expr(e).alias(n) for n, e in KEYS[self.key].items()]
        # The window before the keys, or after the first: its place in the grouping must not matter.
        grouping = [window, *keys] if self.partitions == "1" else [*keys[:1], window, *keys[1:]]
        result = frame.groupBy(*grouping).agg(*(F.expr(e).alias(n) for n, e in AGGREGATES[self.aggregate].items()))
        return result.where(HAVING[self.aggregate]) if self.having == "yes" else result

    def _sql(self, spark: SparkSession, frame: DataFrame) -> DataFrame:
        frame.createOrReplaceTempView("stream")
        window = self.window_sql()
        keys = [f"{e} AS {n}" for n, e in KEYS[self.key].items()]
        aggregates = [f"{e} AS {n}" for n, e in AGGREGATES[self.aggregate].items()]
        having = " HAVING count(*) > 2 AND max(id) % 2 = 0" if self.having == "yes" else ""
        return spark.sql(
            f"SELECT {', '.join([window, *keys, *aggregates])} FROM stream "
            f"GROUP BY {', '.join([*KEYS[self.key].values(), window])}{having}"
        )
