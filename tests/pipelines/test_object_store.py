"""Checkpoints in a bucket of an S3 server: equal rows, requests that fail, kills, and state that moves.

Plain Spark has its checkpoint on the local disk, so what is compared does not go through the store on one side.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chaos.campaign import Campaign
from chaos.strikes import Plan, Strike
from pipelines_harness.events import SPARK_OPERATORS, WINDOWS
from pipelines_harness.object_store import ABORTABLE, DEFAULT, HASTY, MANAGER, OURS, RENAMING, ObjectStore
from pipelines_harness.s3_proxy import CUT_ANSWER, CUT_REQUEST, UNAVAILABLE, WRITES, Fault
from pipelines_harness.sides import both
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import (
    PROVIDERS,
    SPARK,
    Recording,
    Run,
    StreamSpec,
    assert_equal,
    assert_placed,
    differences,
    new_session,
    row_differences,
    run,
    spark_home,
    write,
)

import gpuwin as gw
from gpuwin_spark.explain import plugin_object

pytestmark = pytest.mark.pipelines

STREAM = StreamSpec(seed=18, batches=5)


def query(kind: str) -> Callable[[SparkSession, DataFrame], DataFrame]:
    """A windowed aggregation of a generated stream, of keys of text."""

    def windowed(_: SparkSession, frame: DataFrame) -> DataFrame:
        grouped = frame.withWatermark("ts", "1 minute").groupBy(F.col("str").alias("k"), WINDOWS[kind]())
        return grouped.agg(F.count("*").alias("n"), F.sum("int").alias("total"), F.max("dec10").alias("max_d"))

    return windowed


def sides(
    spark: SparkSession,
    kind: str,
    provider: str,
    store: ObjectStore,
    folder: Path,
    *,
    conf: dict[str, str] | None = None,
    how: Run | None = None,
    **asked: Any,
) -> tuple[Recording, Recording]:
    """Plain Spark on the disk, and gpuwin in the bucket, over one stream; stopped and started again after a batch."""
    stream = write(STREAM, folder / "stream")
    how = how or Run(trigger="processing", restart_after=frozenset({2}))

    def side(enabled: bool) -> Recording:
        if not enabled:
            return run(
                spark, query(kind), stream, replace(how, conf=PROVIDERS[provider]), folder / "plain", enabled=False
            )
        own = replace(
            how, conf={**PROVIDERS[provider], **store.settings(), **(conf or {})}, checkpoint=store.checkpoint
        )
        return run(spark, query(kind), stream, own, folder / "device", enabled=True, **asked)

    plain, device = both(side)
    return plain, device


@pytest.mark.parametrize(
    ("kind", "provider", "manager"),
    [
        ("sliding", "hdfs", DEFAULT),
        ("session", "rocksdb_changelog", OURS),
        *(
            pytest.param(kind, provider, manager, marks=pytest.mark.sweep)
            for kind, provider, manager in (
                ("session", "hdfs", RENAMING),
                ("sliding", "hdfs_snapshots", OURS),
                ("session", "hdfs_snapshots", ABORTABLE),
                ("sliding", "rocksdb", DEFAULT),
                ("session", "rocksdb", RENAMING),
                ("sliding", "rocksdb_changelog", ABORTABLE),
                ("sliding", "rocksdb_changelog", DEFAULT),
            )
        ),
    ],
)
def test_rows_are_equal(
    kind: str, provider: str, manager: str, spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    """With a stop and a start in the middle. Nothing of the checkpoint is on the disk."""
    conf = store.settings(manager=manager)
    plain, device = sides(spark, kind, provider, store, tmp_path, conf=conf)
    assert_equal(plain, device, spark_operators=SPARK_OPERATORS[kind])
    assert not (tmp_path / "device" / "checkpoint").exists()
    state = [key for key in store.bucket.keys("checkpoint/state/0/") if "/gpuwin/" in key]
    assert state
    assert not [key for key in state if key.endswith(".tmp")]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("provider", "manager", "fault"),
    [
        ("hdfs", OURS, Fault(UNAVAILABLE, every=8)),
        ("rocksdb_changelog", DEFAULT, Fault(UNAVAILABLE, every=8)),
        *(
            (provider, DEFAULT, Fault(how, kinds, every=4))
            for provider in ("hdfs", "rocksdb_changelog")
            for how, kinds in (
                (CUT_REQUEST, frozenset({"PUT"})),
                (CUT_ANSWER, frozenset({"GET", "PUT", "HEAD", "LIST"})),
                (CUT_ANSWER, frozenset({"COPY", "DELETE"})),
            )
        ),
    ],
)
def test_some_requests_fail(
    provider: str, manager: str, fault: Fault, spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    """S3A tries them again, and the query goes on as if nothing had been. So it does with the classic stream; that of
    Hadoop 3.5's defaults gives up at an answer that is cut in its middle.
    """
    store.proxy.fail(fault)
    patient = {**HASTY, "retry.limit": "7", "retry.throttle.limit": "20", "input.stream.type": "classic"}
    conf = store.settings(patient, manager=manager)
    plain, device = sides(spark, "sliding", provider, store, tmp_path, conf=conf)
    assert_equal(plain, device)
    assert store.proxy.failed > 5


@pytest.mark.sweep
def test_slow_requests(spark: SparkSession, store: ObjectStore, tmp_path: Path) -> None:
    store.proxy.delay = 0.05
    plain, device = sides(spark, "sliding", "hdfs", store, tmp_path)
    assert_equal(plain, device)


@pytest.mark.sweep
@pytest.mark.parametrize("provider", ["hdfs", "rocksdb_changelog"])
@pytest.mark.parametrize("kinds", [frozenset({"PUT"}), frozenset({"GET"})], ids=["written", "read"])
@pytest.mark.parametrize("how", [UNAVAILABLE, CUT_ANSWER])
def test_requests_that_go_on_failing(
    how: str, kinds: frozenset[str], provider: str, spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    """The query ends with an error that names the object and says what the store said, and loses nothing."""
    stream = write(STREAM, tmp_path / "stream")
    plain = run(
        spark, query("sliding"), stream, Run(trigger="once", conf=PROVIDERS[provider]), tmp_path / "p", enabled=False
    )
    conf = {**PROVIDERS[provider], **store.settings(HASTY)}
    own = Run(trigger="once", conf=conf, checkpoint=store.checkpoint)
    before = run(spark, query("sliding"), stream.head(3), own, tmp_path / "d", enabled=True)
    assert before.error is None
    store.proxy.fail(Fault(how, kinds, key="/gpuwin/"))
    failed = run(spark, query("sliding"), stream.head(4), own, tmp_path / "d", enabled=True)
    assert failed.error is not None
    assert not failed.all_rows()
    assert store.proxy.failed > 0
    print(failed.error.message[:3000])
    store.proxy.heal()
    after = run(spark, query("sliding"), stream, own, tmp_path / "d", enabled=True)
    assert after.error is None
    assert_placed(after, ["gpuwin"])
    wanted, found = plain.all_rows(), [*before.all_rows(), *after.all_rows()]
    assert wanted
    assert not list(row_differences(wanted, found, plain.columns))


@pytest.mark.sweep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("provider", ["hdfs", "rocksdb_changelog"])
@pytest.mark.parametrize("manager", [DEFAULT, OURS], ids=["default", "ours"])
def test_kills(manager: str, provider: str, store: ObjectStore, for_s3a: tuple[Path, ...], tmp_path: Path) -> None:
    """Of the service, an executor and the driver, in the middle of batches: every row is there, and none twice."""
    strikes = (
        Strike(0, "service", "mid_request"),
        Strike(1, "executor", "between_segment_and_commit"),
        Strike(2, "driver", "after_commit"),
        Strike(3, "driver", "mid_request"),
    )
    conf = {**store.application(manager=manager), "spark.jars": ",".join(map(str, for_s3a))}
    campaign = Campaign(
        Plan(18, provider, "sliding" if provider == "hdfs" else "session", 5, strikes),
        tmp_path / "query",
        spark_home=spark_home(tmp_path),
        conf=conf,
        checkpoint=store.checkpoint,
        mirror=lambda log, folder: store.bucket.copy(f"checkpoint/{log}/", folder),
    )
    done = campaign.run()
    assert done.right, json.dumps(done.report(), indent=1)
    assert [(k["target"], k["step"]) for k in done.kills] == [(s.target, s.step) for s in strikes]


def hadoop(session: SparkSession) -> Any:
    """The Hadoop configuration of a session."""
    return session._jsparkSession.sessionState().newHadoopConf()


def path(session: SparkSession, url: str) -> Any:
    """A path, as Hadoop has it."""
    return session._jvm.org.apache.hadoop.fs.Path(url)


def test_what_is_replaced_is_there_at_every_moment(spark: SparkSession, store: ObjectStore) -> None:
    """A store whose copies fail: of a rename over a file, the removal would be done by then."""
    session = new_session(spark, store.settings(HASTY), enabled=True)
    file, text = path(session, store.bucket.url("state/_gpuwin_stores")), plugin_object("CheckpointText")
    text.write(file, "one", hadoop(session))
    store.proxy.fail(Fault(UNAVAILABLE, frozenset({"COPY"})))
    text.write(file, "two", hadoop(session))
    assert store.bucket.read("state/_gpuwin_stores") == b"two"
    store.proxy.fail(Fault(UNAVAILABLE, frozenset({"PUT"})))
    with pytest.raises(Py4JJavaError, match="_gpuwin_stores"):
        text.write(file, "three", hadoop(session))
    assert store.bucket.read("state/_gpuwin_stores") == b"two"
    assert not [r for r in store.proxy.requests if r.kind in ("DELETE", "COPY")]


def test_claim_on_the_state_of_a_checkpoint(spark: SparkSession, store: ObjectStore) -> None:
    """A second command is refused until the first one has ended, or somebody removes what it left."""
    session = new_session(spark, store.settings(HASTY), enabled=True)
    text, claims, conf = plugin_object("CheckpointText"), plugin_object("StateClaim"), hadoop(session)
    for log in ("offsets", "commits"):
        text.write(path(session, store.bucket.url(f"{log}/0")), "v1", conf)
    claim = claims.take(store.bucket.url(""), "one", conf, False)
    with pytest.raises(PySparkException, match=r"claimed by one, process \d+ .*nothing works there, remove s3a:"):
        claims.take(store.bucket.url(""), "two", conf, False)
    claim.close()
    claims.take(store.bucket.url(""), "two", conf, False).close()
    assert "_gpuwin_claim" not in store.bucket.keys("")


def test_files_of_a_checkpoint_are_whole_or_not_there(spark: SparkSession, store: ObjectStore) -> None:
    """One request a file; one that fails is an error; of two who make a file that must be new, one is refused."""
    session = new_session(spark, store.settings(HASTY, manager=OURS), enabled=True)
    files = session._jvm.org.apache.spark.sql.gpuwin.ObjectStoreFiles(
        path(session, store.bucket.url("log")), hadoop(session)
    )

    def begun(name: str, *, replaces: bool) -> Any:
        out = files.createAtomic(path(session, store.bucket.url(f"log/{name}")), replaces)
        out.write(name.encode())
        return out

    store.proxy.forget()
    begun("1", replaces=True).close()
    assert store.proxy.counts == {"PUT": 1}
    begun("2", replaces=True).cancel()
    one, two = (begun("3", replaces=False) for _ in range(2))
    one.close()
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        two.close()
    store.proxy.fail(Fault(CUT_ANSWER, frozenset({"PUT"})))
    with pytest.raises(Py4JJavaError, match="log/5 is there already: another writer made it, or this one"):
        begun("5", replaces=False).close()
    for how in (UNAVAILABLE, CUT_REQUEST):
        store.proxy.fail(Fault(how, frozenset({"PUT"})))
        with pytest.raises(Py4JJavaError, match="log/4"):
            begun("4", replaces=True).close()
    assert store.bucket.keys("log/") == ["log/1", "log/3", "log/5"]
    store.proxy.heal()


def test_files_elsewhere_are_written_as_spark_does_it(spark: SparkSession, store: ObjectStore, tmp_path: Path) -> None:
    """Spark asks the manager that is set for the log of a file sink, too, which may be on another file system."""
    session = new_session(spark, store.settings(manager=OURS), enabled=True)
    files = session._jvm.org.apache.spark.sql.gpuwin.ObjectStoreFiles(
        path(session, f"file:{tmp_path}"), hadoop(session)
    )
    for text in (b"one", b"two"):
        out = files.createAtomic(path(session, f"file:{tmp_path}/log"), True)
        out.write(text)
        out.close()
    assert (tmp_path / "log").read_bytes() == b"two"
    out = files.createAtomic(path(session, f"file:{tmp_path}/log"), False)
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        out.close()


@pytest.mark.sweep
def test_spark_s_manager_keeps_errors_to_itself(spark: SparkSession, store: ObjectStore) -> None:
    """Why docs/object_stores.md warns of it. Once Spark mends it, this fails, and the page is to be changed."""
    session = new_session(spark, store.settings(HASTY, manager=ABORTABLE), enabled=True)
    manager = session._jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(ABORTABLE)
    (constructor,) = manager.getConstructors()
    values = session.sparkContext._gateway.new_array(session._jvm.java.lang.Object, 2)
    values[0], values[1] = path(session, store.bucket.url("log")), hadoop(session)
    files = constructor.newInstance(values)
    files.mkdirs(path(session, store.bucket.url("log")))

    def written(name: str, text: str, *, replaces: bool) -> None:
        out = files.createAtomic(path(session, store.bucket.url(f"log/{name}")), replaces)
        out.write(text.encode())
        out.close()

    written("1", "one", replaces=False)
    one = files.createAtomic(path(session, store.bucket.url("log/2")), False)
    two = files.createAtomic(path(session, store.bucket.url("log/2")), False)
    for out, text in ((one, b"one"), (two, b"two")):
        out.write(text)
    one.close()
    two.close()  # it must be new, and is not
    assert store.bucket.read("log/2") == b"one"
    store.proxy.fail(Fault(UNAVAILABLE, frozenset({"PUT"})))
    written("3", "three", replaces=True)  # no error
    assert "log/2" in store.bucket.keys("log/")
    assert "log/3" not in store.bucket.keys("log/")


def test_stores_write_files_under_their_names(spark: SparkSession, store: ObjectStore) -> None:
    """A manager that the user has set stays."""
    given = hadoop(new_session(spark, store.settings(manager=RENAMING), enabled=True))
    stores = plugin_object("StoreFiles")
    assert stores.configuration(store.checkpoint, given).get(MANAGER) == RENAMING
    given.unset(MANAGER)
    made = stores.configuration(store.checkpoint, given)
    assert made.get(MANAGER) == OURS
    assert stores.configuration(store.checkpoint, given).equals(made), "tasks of a batch share one"
    assert stores.configuration("file:/tmp/c", given).get(MANAGER) != OURS
    assert given.get(MANAGER) is None


def test_a_batch_makes_no_client(spark: SparkSession, store: ObjectStore, tmp_path: Path) -> None:
    """Each client of S3A is told to look for its bucket when it is made: as many look in five batches as in one."""
    stream = write(replace(STREAM, empty=None), tmp_path / "stream")
    conf = {**store.settings(), "fs.s3a.bucket.probe": "2"}
    how = Run(conf=conf, checkpoint=store.checkpoint)
    made = []
    for batches in (1, 5):
        own = replace(how, checkpoint=store.bucket.url(f"checkpoint-{batches}"))
        done = run(spark, query("sliding"), stream.head(batches), own, tmp_path / str(batches), enabled=True)
        assert_placed(done, ["gpuwin"])
        assert len(done.batches) >= batches
        made.append(store.proxy.counts["BUCKET"])
        store.proxy.forget()
    assert 0 < made[1] <= made[0]


@pytest.mark.sweep
@pytest.mark.parametrize("provider", ["hdfs", "rocksdb_changelog"])
@pytest.mark.parametrize("manager", [DEFAULT, OURS], ids=["default", "ours"])
def test_state_that_moves(manager: str, provider: str, spark: SparkSession, store: ObjectStore, tmp_path: Path) -> None:
    """Rescaled twice, looked at, given back to Spark, adopted again: against an undisturbed plain Spark."""
    stream = write(StreamSpec(seed=19, batches=6, empty=None), tmp_path / "stream")
    how = Run(trigger="processing", conf=PROVIDERS[provider])
    plain = run(spark, query("sliding"), stream, how, tmp_path / "plain", enabled=False)
    own = replace(how, conf={**how.conf, **store.settings(manager=manager)}, checkpoint=store.checkpoint)
    session = new_session(spark, own.conf, enabled=True)
    parts: list[Recording] = []

    def on(batches: int, *, enabled: bool = True, adopt: bool = False) -> None:
        conf = {**own.conf, "spark.gpuwin.adopt": str(adopt).lower()}
        done = run(
            spark, query("sliding"), stream.head(batches), replace(own, conf=conf), tmp_path / "moved", enabled=enabled
        )
        assert done.error is None, done.error
        assert_placed(done, ["gpuwin"] if enabled else ["stateStoreSave"])
        parts.append(done)

    on(1)
    assert gw.spark.rescale_state(session, store.checkpoint, 3)
    on(2)
    assert gw.spark.rescale_state(session, store.checkpoint, 1)
    on(3)
    assert gw.spark.read_state(session, store.checkpoint).count() > 0
    gw.spark.give_back_state(session, store.checkpoint)
    on(4, enabled=False)
    on(5, adopt=True)
    on(6)
    wanted, found = plain.all_rows(), [row for part in parts for row in part.all_rows()]
    assert wanted
    assert not list(row_differences(wanted, found, plain.columns))


# A rescaling that is cut off

whole = pytest.mark.skipif(SPARK < (4, 2), reason="Spark before 4.2 cannot change the number of its own operators")


def distinct(session: SparkSession, frame: DataFrame) -> DataFrame:
    """An operator of Spark's own above one of gpuwin's."""
    return query("sliding")(session, frame).select("k", "window", "total").dropDuplicates(["k", "window", "total"])


class Rescaled:
    """A query in a bucket, after two batches, that is to be rescaled from two partitions to three."""

    def __init__(self, spark: SparkSession, store: ObjectStore, folder: Path, manager: str) -> None:
        self.spark, self.store, self.folder = spark, store, folder
        self.conf = {**PROVIDERS["rocksdb"], **store.settings(HASTY, manager=manager)}
        self.stream = write(replace(STREAM, batches=4, empty=None), folder / "stream")
        how = Run(conf=PROVIDERS["rocksdb"])
        self.before = run(spark, distinct, self.stream.head(2), how, folder / "plain", enabled=False)
        self.plain = run(spark, distinct, self.stream, how, folder / "plain", enabled=False)
        assert any(batch.rows for batch in self.plain.batches)
        assert self.run("begun", 2).error is None

    def run(self, name: str, batches: int = 4) -> Recording:
        """The query on the checkpoint of this name. Each has a folder of files of its own, of the same name in Spark's
        log."""
        how = Run(conf=self.conf, checkpoint=self.store.bucket.url(name))
        return run(self.spark, distinct, self.stream.head(batches), how, self.folder / "device", enabled=True)

    def cut_off(self, name: str, writes: int) -> None:
        """Rescales a copy of the checkpoint, and cuts the store off after some writes past the beginning."""
        self.store.bucket.copy_objects("begun/", f"{name}/")
        self.store.proxy.cut_off(writes)
        with pytest.raises((gw.spark.CheckpointError, Py4JJavaError)):
            self.rescale(name)
        assert self.store.proxy.failed > 0
        self.store.proxy.heal()

    def rescale(self, name: str) -> None:
        session = new_session(self.spark, self.conf, enabled=True)
        gw.spark.rescale_state(session, self.store.bucket.url(name), 3)

    def writes_of_a_rescaling(self) -> tuple[int, int]:
        """How many writes there are until its switch is there, and in all, but for the removal of its claim."""
        self.store.bucket.copy_objects("begun/", "whole/")
        self.store.proxy.forget()
        self.rescale("whole")
        writes = [request for request in self.store.proxy.requests if request.kind in WRITES]
        (switch,) = [n for n, r in enumerate(writes) if r.kind == "PUT" and r.key.endswith("/_ready")]
        return switch + 1, 1 + max(n for n, r in enumerate(writes) if not r.key.endswith("/_gpuwin_claim"))

    def has_switched(self, name: str) -> bool:
        return f"{name}/_gpuwin_rescaled/_ready" in self.store.bucket.keys(f"{name}/")

    def goes_on(self, name: str, *, partitions: int, first_fails: bool = False) -> None:
        """The query starts, with this number in all of its operators, and the rows of plain Spark."""
        if first_fails:
            ended = self.run(name)
            assert ended.error is not None
            assert "Start the query again" in ended.error.message
            assert not ended.batches
        rest = self.run(name)
        assert rest.error is None, rest.error
        assert {int(n) for n in re.findall(r"hashpartitioning\(.*?, (\d+)\)", rest.plan)} == {partitions}
        assert not self.has_switched(name)
        begun = {b.id for b in self.before.batches}
        wanted = replace(self.plain, batches=[b for b in self.plain.batches if b.id not in begun])
        assert differences(wanted, rest) == []


@whole
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("manager", "apart"),
    [
        pytest.param(DEFAULT, 10, id="some"),
        pytest.param(DEFAULT, 1, id="default", marks=pytest.mark.sweep),
        pytest.param(OURS, 1, id="ours", marks=pytest.mark.sweep),
    ],
)
def test_a_rescaling_that_is_cut_off(
    manager: str, apart: int, spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    """Right before its switch, and after each write past it. The query starts as it was, or as rescaled."""
    rescaled = Rescaled(spark, store, tmp_path, manager)
    switch, every = rescaled.writes_of_a_rescaling()
    assert every - switch > 10, "files of three partitions, offsets, and what is removed"
    for writes in range(switch - 1, every, apart):
        name = f"cut-{writes}"
        rescaled.cut_off(name, writes)
        switched = rescaled.has_switched(name)
        rescaled.goes_on(name, partitions=3 if writes >= switch else 2, first_fails=switched and manager == OURS)
