"""Files on this machine without a child process for each.

Where Hadoop's native library is missing, as it is in the package pyspark, `RawLocalFileSystem` sets the permission of
every file and folder that it makes by running ``chmod``. A micro-batch makes some forty, and starting their processes
took a quarter of the processor time of these tests. Here the same permission is set by a system call.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

_NAME = "gpuwin.tests.LocalFiles"
_SOURCE = """
package gpuwin.tests;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends LocalFileSystem {
  public LocalFiles() { super(new Raw()); }

  public static class Raw extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) throws IOException {
      String letters =
        permission.getUserAction().SYMBOL + permission.getGroupAction().SYMBOL + permission.getOtherAction().SYMBOL;
      Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(letters));
    }
  }
}
"""


def without_child_processes(spark: SparkSession) -> None:
    """Makes the driver's JVM use it from now on for ``file:``; in local mode that is where the tasks run as well.

    Hadoop keeps one file system for each scheme, and asks for its class only when there is none yet.
    """
    jvm: Any = spark._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
    compiler.cook(_SOURCE)
    configuration = jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    configuration.setClassLoader(compiler.getClassLoader())
    configuration.set("fs.file.impl", _NAME)
    files = jvm.org.apache.hadoop.fs.FileSystem
    files.closeAll()
    made = files.get(jvm.java.net.URI("file:///"), configuration)
    assert made.getClass().getName() == _NAME
