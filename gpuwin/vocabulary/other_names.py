"""Names that other systems have for what gpuwin calls otherwise: for the error of somebody who writes them."""

from __future__ import annotations

from typing import Final

_FUNCTIONS: Final = {
    "approx_count_distinct": "approx_distinct approxCountDistinct approx_unique approx_n_unique approx_nunique hll",
    "approx_quantile": "approx_percentile percentile_approx approxQuantile approxPercentile",
    "all": "bool_and logical_and every",
    "any": "bool_or logical_or some",
    "any_value": "anyValue arbitrary",
    "collect_list": "array_agg collect list_agg to_list",
    "collect_set": "to_set unique",
    "corr": "pearson",
    "count": "size len length count_all counting",
    "count_distinct": "countDistinct distinct nunique n_unique uniq uniqExact",
    "count_if": "countIf count_where",
    "covar_samp": "cov covar covariance",
    "first": "first_value earliest earliest_by_offset",
    "last": "last_value latest latest_by_offset",
    "max": "maximum",
    "max_by": "arg_max argmax argMax maxBy TopOne",
    "mean": "avg average try_avg",
    "min": "minimum",
    "min_by": "arg_min argmin argMin minBy BottomOne",
    "quantile": "percentile percentile_cont quantile_cont quantileExact",
    "skewness": "skew",
    "kurtosis": "kurt",
    "std": "stddev stddev_samp stdev",
    "sum": "try_sum",
    "top_k": "topk topK topN top_n largest nlargest max_n CollectTop",
    "var": "variance var_samp",
}
_PARTS: Final = {
    "TumblingWindow": "Tumble TumbleWindow FixedWindow FixedWindows TumblingWindows TumblingWindower "
    "TumblingEventTimeWindows TumblingTimeWindow Tumbling tumble tumbling",
    "SlidingWindow": "Hop HopWindow HoppingWindow SlidingWindows SlidingWindower SlidingEventTimeWindows "
    "SlidingTimeWindow Sliding Hopping hop hopping sliding",
    "CumulativeWindow": "Cumulate CumulateWindow cumulate",
    "CalendarWindow": "CalendarWindows date_trunc dateTrunc toStartOfMonth toStartOfDay",
    "SessionWindow": "Session Sessions SessionWindows SessionWindower EventTimeSessionWindows "
    "DynamicEventTimeSessionWindows session session_window",
    "GlobalWindow": "GlobalWindows",
    "AsOfJoin": "AsofJoin ASOFJoin merge_asof join_asof asof_join TemporalJoin temporal_join",
    "Deduplicate": "dropDuplicates drop_duplicates dropDuplicatesWithinWatermark deduplicate dedup Dedup Deduplication "
    "RemoveDuplicates remove_duplicates drop_duplicates_within_watermark",
    "BoundedOutOfOrderness": "Watermark watermark withWatermark with_watermark forBoundedOutOfOrderness "
    "for_bounded_out_of_orderness WatermarkStrategy",
    "OnClose": "Append AfterWatermark EventTimeTrigger OnWindowClose Suppress suppress EmitFinal",
    "OnUpdate": "Update EmitChanges",
    "EveryRows": "CountTrigger AfterCount",
    "Every": "ProcessingTimeTrigger AfterProcessingTime",
    "EveryEventTime": "ContinuousEventTimeTrigger",
}
_COUNT_WINDOW: Final = (
    "it is gw.GlobalWindow() with gw.Trigger(gw.EveryRows(n)) and accumulation='discarding', "
    "or, where they overlap, evict=gw.KeepLast(size)"
)
_LATE: Final = "late rows are had by collect_late=True and op.late_rows()"
_OWN: Final = "write it with gw.accumulation, as in docs/aggregates.md"
_SENTENCES: Final = {
    "mode": "gw.histogram has how often each value came",
    "percentile_disc": "gw.approx_quantile gives a value of the column, gw.quantile lies between two",
    "listagg": "gw.collect_list has the texts, to be joined",
    "string_agg": "gw.collect_list has the texts, to be joined",
    "group_concat": "gw.collect_list has the texts, to be joined",
    "stddev_pop": "it is gw.std(column, ddof=0)",
    "var_pop": "it is gw.var(column, ddof=0)",
    "CountWindow": _COUNT_WINDOW,
    "countWindow": _COUNT_WINDOW,
    "count_window": _COUNT_WINDOW,
    "SnapshotWindow": 'it is gw.TumblingWindow("1 microsecond")',
    "grace": "it is allowed_lateness=, or the delay of gw.BoundedOutOfOrderness",
    "lag": "write it with gw.accumulation, whose ordered=True sees rows in order",
    "LAG": "write it with gw.accumulation, whose ordered=True sees rows in order",
    "PurgingTrigger": "it is accumulation='discarding'",
    "OutputTag": _LATE,
    "sideOutputLateData": _LATE,
    "side_output_late_data": _LATE,
    "allowedLateness": "it is allowed_lateness= of gw.WindowedAggregation",
    "AggregateFunction": _OWN,
    "ReduceFunction": _OWN,
    "ProcessWindowFunction": _OWN,
    "reduce": _OWN,
    "CoGroup": "it is gw.WindowJoin(..., how='cogroup')",
    "coGroup": "it is gw.WindowJoin(..., how='cogroup')",
    "WindowedJoin": "it is gw.WindowJoin",
    "window": "it is gw.TumblingWindow(size) or gw.SlidingWindow(size, slide)",
    "sum_distinct": "gw.collect_set has the different values",
    "product": _OWN,
    "agg": "aggregates are a dict: aggregates={'total': gw.sum('amount')}",
    "col": "columns are named by strings; gw.column is for the gap of a session",
    "Join": "there are gw.IntervalJoin, gw.WindowJoin, gw.AsOfJoin and gw.HashJoin",
    "join": "there are gw.IntervalJoin, gw.WindowJoin, gw.AsOfJoin and gw.HashJoin",
}
INSTEAD: Final = {
    **{other: f"it is gw.{ours}" for table in (_FUNCTIONS, _PARTS) for ours, text in table.items()
       for other in text.split()},
    **_SENTENCES,
}  # fmt: skip
"""What to write, by the name in another system: the end of a sentence."""
