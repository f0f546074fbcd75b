package org.apache.spark.sql.gpuwin

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.codegen.{CodegenContext, CodeGenerator}
import org.apache.spark.sql.execution.{CodegenSupport, UnaryExecNode}

/** A node whose generated code takes rows into an object, which has rows ready for the node above now and then. */
trait EmitsBetweenRows extends UnaryExecNode with CodegenSupport {
  override def inputRDDs(): Seq[RDD[InternalRow]] = child.asInstanceOf[CodegenSupport].inputRDDs()
  /** True: rows lie in one place, and a child that makes several rows of one does not stop between them. */
  override def needCopyResult: Boolean = true

  /** The generated method that hands one row on. */
  protected var emit: String = _

  /**
   * The loop over the rows. It is left, and entered again, where a row is out; so what is ready is emitted first.
   *
   * @param from  the object's variable; it has `ready()` and `next()`
   * @param last  its method for when all rows have come
   * @param count code for each row that is handed on
   */
  protected def loop(ctx: CodegenContext, from: String, last: String, count: String): String = {
    val all = ctx.addMutableState(CodeGenerator.JAVA_BOOLEAN, "allRowsCame", v => s"$v = false;")
    val (row, name) = (ctx.freshName("ready"), ctx.freshName("emitReady"))
    emit = ctx.addNewFunction(name,
      s"""
         |private void $name() throws java.io.IOException {
         |  UnsafeRow $row = $from.next();
         |  $count
         |  ${consume(ctx, null, row)}
         |}
       """.stripMargin)
    s"""
       |while ($from.ready()) {
       |  $emit();
       |  if (shouldStop()) return;
       |}
       |if (!$all) {
       |  ${child.asInstanceOf[CodegenSupport].produce(ctx, this)}
       |  $all = true;
       |  $from.$last();
       |  while ($from.ready()) {
       |    $emit();
       |    if (shouldStop()) return;
       |  }
       |}
     """.stripMargin
  }
}
