"""What comes out of the topic $source, as a table of its own; and what goes on to the topic $target, each row once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

REGISTRY = "$registry"

spark = SparkSession.active()


@dp.table
def messages() -> DataFrame:
    """Every message of the topic, from its oldest one on."""
    stream = spark.readStream.format("penstock").options(registry=REGISTRY, startingOffsets="earliest")
    return stream.load("$source").select("key", "value", "tags", "timestamp")


dp.create_sink("outbox", "penstock", {"registry": REGISTRY, "topic": "$target"})


@dp.append_flow(target="outbox", name="send")
def send() -> DataFrame:
    """What is sent on: put your transformation here."""
    return spark.readStream.table("messages").selectExpr("key", "upper(cast(value as string)) as value", "tags")
