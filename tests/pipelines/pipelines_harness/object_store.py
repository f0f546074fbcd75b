"""A bucket that Spark reaches as s3a, through a proxy of its own, and what Spark has to be told for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_harness import streaming_class

from .s3_proxy import S3Proxy
from .s3_server import Bucket

#: Where Spark looks for the class that sees to the files of a checkpoint.
MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
#: Where nothing is set: gpuwin's for its own stores, and for the rest what Spark takes.
DEFAULT: Final = ""
#: What Spark takes, which writes a file under another name and renames it: on S3, copies it.
RENAMING: Final = streaming_class("checkpointing", "FileContextBasedCheckpointFileManager")
#: The one of Spark's module for object stores, which writes each file under its own name.
ABORTABLE: Final = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"

#: gpuwin's, set for all files of a checkpoint.
OURS: Final = "org.apache.spark.sql.gpuwin.ObjectStoreFiles"

#: How S3A reaches a server on this machine, and gives up on requests in seconds, where it would take minutes.
_S3A: Final = {
    "endpoint.region": "us-east-1",
    "path.style.access": "true",
    "connection.ssl.enabled": "false",
    "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "access.key": "nobody",
    "secret.key": "nothing",
    "fast.upload.buffer": "bytebuffer",
}
#: Settings under which a request that goes on failing is given up after some tries in a second or two.
HASTY: Final = {
    "attempts.maximum": "1",
    "retry.limit": "2",
    "retry.interval": "50ms",
    "retry.throttle.limit": "2",
    "retry.throttle.interval": "50ms",
}


@dataclass(frozen=True)
class ObjectStore:
    """A bucket, and the proxy before it."""

    bucket: Bucket
    proxy: S3Proxy

    @property
    def checkpoint(self) -> str:
        """The ``checkpointLocation`` of a query."""
        return self.bucket.url("checkpoint")

    def settings(self, others: Mapping[str, str] | None = None, *, manager: str = DEFAULT) -> dict[str, str]:
        """What a session is told of this bucket; `others` are settings of S3A."""
        s3a = {**_S3A, "endpoint": self.proxy.address, **(others or {})}
        return {MANAGER: manager, **{f"fs.s3a.bucket.{self.bucket.name}.{key}": v for key, v in s3a.items()}}

    def application(self, others: Mapping[str, str] | None = None, *, manager: str = DEFAULT) -> dict[str, str]:
        """The same for an application."""
        named = self.settings(others, manager=manager).items()
        return {key if key == MANAGER else f"spark.hadoop.{key}": value for key, value in named}
