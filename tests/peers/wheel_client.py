"""A program on the unchanged `rocketmq` wheel (C++ client). Run by the interpreter of its own folder, not by ours.

    python wheel_client.py send|oneway|async|orderly|delay|push|pull REGISTRY TOPIC GROUP [arguments]

Prints one JSON object a line.
"""

import json
import os
import sys
import threading
import time

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer
from rocketmq.ffi import MessageModel

_telling = threading.Lock()


def tell(**what):
    """A whole line: the client calls back from threads of its own, and a pipe takes 64 KiB at once."""
    with _telling:
        print("\n" + json.dumps(what), flush=True)


def message(topic, body, tags=None, keys=None, level=0, **properties):
    m = Message(topic)
    m.set_body(body)
    if tags:
        m.set_tags(tags)
    if keys:
        m.set_keys(keys)
    if level:
        m.set_delay_time_level(level)
    for name, value in properties.items():
        m.set_property(name, value)
    return m


def producing(registry, group):
    producer = Producer(group, timeout=5000)
    producer.set_namesrv_addr(registry)
    log_in(producer)
    producer.start()
    return producer


def log_in(client):
    if "PEER_USER" in os.environ:
        client.set_session_credentials(os.environ["PEER_USER"], os.environ["PEER_SECRET"], "")


def send(registry, topic, group, count="3", tags="", size="0"):
    producer = producing(registry, group)
    for i in range(int(count)):
        body = str(i) + "x" * int(size)
        result = producer.send_sync(message(topic, body, tags or None, f"k{i}", colour="red"))
        tell(status=int(result.status), id=result.msg_id, offset=result.offset)
    producer.shutdown()


def oneway(registry, topic, group, count="3"):
    producer = producing(registry, group)
    for i in range(int(count)):
        producer.send_oneway(message(topic, str(i)))
    time.sleep(1)  # nothing tells when they are out
    producer.shutdown()


def send_async(registry, topic, group, count="3"):
    producer = producing(registry, group)
    done = threading.Semaphore(0)

    def success(result):
        tell(status=int(result.status), id=result.msg_id, offset=result.offset)
        done.release()

    def failure(error):
        tell(error=str(error))
        done.release()

    for i in range(int(count)):
        producer.send_async(message(topic, str(i)), success, failure)
    for _ in range(int(count)):
        done.acquire()
    producer.shutdown()


def orderly(registry, topic, group, count="8"):
    producer = producing(registry, group)
    for i in range(int(count)):
        result = producer.send_orderly(message(topic, str(i)), i % 2)
        tell(status=int(result.status), id=result.msg_id, offset=result.offset)
    producer.shutdown()


def delay(registry, topic, group, level="1"):
    producer = producing(registry, group)
    result = producer.send_sync(message(topic, "later", level=int(level)))
    tell(status=int(result.status), at=time.time())
    producer.shutdown()


def push(registry, topic, group, count="3", expression="*", mode="cluster", fail="", seconds="40"):
    consumer = PushConsumer(
        group,
        orderly=mode == "orderly",
        message_model=MessageModel.BROADCASTING if mode == "broadcast" else MessageModel.CLUSTERING,
    )
    consumer.set_namesrv_addr(registry)
    log_in(consumer)
    consumer.set_instance_name(f"{mode}-{time.time()}")
    got = threading.Semaphore(0)

    def listener(m):
        tell(
            body=m.body.decode(),
            topic=m.topic,
            id=m.id,
            tags=(m.tags or b"").decode(),
            keys=(m.keys or b"").decode(),
            queue=m.queue_id,
            offset=m.queue_offset,
            times=m.reconsume_times,
            colour=(m["colour"] or b"").decode(),
            at=time.time(),
        )
        got.release()
        if fail and m.body.decode().startswith(fail) and m.reconsume_times == 0:
            raise ValueError("once more")

    consumer.subscribe(topic, listener, expression)
    consumer.start()
    tell(started=True)
    until = time.time() + float(seconds)
    for _ in range(int(count)):
        if not got.acquire(timeout=max(0.1, until - time.time())):
            break
    time.sleep(0.3)  # more than asked for would be an error too
    consumer.shutdown()


def pull(registry, topic, group, expression="*"):
    consumer = PullConsumer(group)
    consumer.set_namesrv_addr(registry)
    consumer.start()
    for m in consumer.pull(topic, expression):
        tell(body=m.body.decode(), queue=m.queue_id, offset=m.queue_offset, tags=(m.tags or b"").decode())
    consumer.shutdown()


if __name__ == "__main__":
    {
        "send": send,
        "oneway": oneway,
        "async": send_async,
        "orderly": orderly,
        "delay": delay,
        "push": push,
        "pull": pull,
    }[sys.argv[1]](*sys.argv[2:])
