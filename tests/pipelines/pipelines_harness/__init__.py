"""A Kafka broker, topics with rows, and queries over them on plain Spark and on gpuwin.

How a query is recorded and compared is that of tests/spark/spark_harness.
"""
