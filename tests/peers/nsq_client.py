"""A program on the unchanged `pynsq` or `ansq` package. Run by the interpreter of its own folder, not by ours.

    python nsq_client.py pynsq|ansq HOST:PORT TOPIC

Publishes ten messages and then two in one command, reads them back, gives one of them back once. Prints one JSON object
a line: the body and the attempts of each delivery.
"""

import asyncio
import json
import sys

COUNT = 13  # ten, two, and one again


def tell(message):
    print(json.dumps({"body": bytes(message.body).decode(), "attempts": message.attempts}), flush=True)


async def ansq(host, port, topic):
    import ansq

    writer = await ansq.create_writer(nsqd_tcp_addresses=[f"{host}:{port}"])
    for n in range(10):
        await writer.pub(topic, f"one {n}")
    await writer.mpub(topic, "two 0", "two 1")
    await writer.close()
    reader = await ansq.create_reader(topic, "ch", nsqd_tcp_addresses=[f"{host}:{port}"])
    left = COUNT
    async for message in reader.messages():
        tell(message)
        if message.body == b"one 3" and message.attempts == 1:
            await message.req(100)
        else:
            await message.fin()
        left -= 1
        if not left:
            break
    await reader.close()


def pynsq(host, port, topic):
    import nsq
    from tornado.ioloop import IOLoop

    left = [COUNT]
    bodies = [f"one {n}".encode() for n in range(10)]
    writer = nsq.Writer([f"{host}:{port}"])

    def published(connection, data):
        if isinstance(data, nsq.Error):
            raise data
        if bodies:
            writer.pub(topic, bodies.pop(0), published)
        else:
            writer.mpub(topic, [b"two 0", b"two 1"])

    def handle(message):
        tell(message)
        left[0] -= 1
        if not left[0]:
            IOLoop.current().call_later(0.2, IOLoop.current().stop)
        return not (message.body == b"one 3" and message.attempts == 1)  # False gives it back

    def begin():
        if writer.conns:
            writer.pub(topic, bodies.pop(0), published)
        else:
            IOLoop.current().call_later(0.05, begin)

    async def start():
        nsq.Reader(topic, "ch", message_handler=handle, nsqd_tcp_addresses=[f"{host}:{port}"], requeue_delay=0,
                   max_backoff_duration=0.1, snappy=False)  # fmt: skip
        begin()

    IOLoop.current().add_callback(start)
    IOLoop.current().start()


if __name__ == "__main__":
    which, address, topic = sys.argv[1:]
    host, _, port = address.rpartition(":")
    if which == "ansq":
        asyncio.run(ansq(host, int(port), topic))
    else:
        pynsq(host, int(port), topic)
