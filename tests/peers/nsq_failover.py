"""Programs on the unchanged `pynsq` package that live through a failover. Run by the interpreter of its own folder, not by ours.

    python nsq_failover.py produce HOST:PORT,HOST:PORT TOPIC       to whichever of the two takes it
    python nsq_failover.py consume LOOKUPD_HTTP TOPIC CHANNEL      finds its nsqds by itself

The producer publishes `0`, `1`, … each until somebody says OK, and prints one JSON object for each that is: its number.
The consumer prints the body and the attempts of each delivery. Both end when their input does.
"""

import json
import sys
import threading

import nsq
from tornado.ioloop import IOLoop


def tell(**words):
    print(json.dumps(words), flush=True)


def produce(addresses, topic):
    writer = nsq.Writer(addresses.split(","), reconnect_interval=0.2)
    number = [0]
    waits = [None]  # for an answer to the attempt of this number; pynsq tells of a lost connection by none at all
    attempts = [0]

    def publish():
        attempts[0] += 1
        mine = attempts[0]
        IOLoop.current().remove_timeout(waits[0]) if waits[0] else None
        waits[0] = IOLoop.current().call_later(3, publish)

        def answered(connection, data):
            if mine != attempts[0]:
                return
            if data == b"OK":
                tell(acknowledged=number[0])
                number[0] += 1
                IOLoop.current().call_later(0.002, publish)
            else:
                IOLoop.current().call_later(0.05, publish)

        writer.pub(topic, str(number[0]).encode(), answered)

    IOLoop.current().add_callback(publish)


def consume(lookup, topic, channel):
    def handle(message):
        tell(body=message.body.decode(), attempts=message.attempts)
        return True

    async def start():
        nsq.Reader(topic, channel, message_handler=handle, lookupd_http_addresses=[f"http://{lookup}"],
                   lookupd_poll_interval=1, lookupd_poll_jitter=0.1, max_in_flight=20, max_backoff_duration=0.5,
                   snappy=False)  # fmt: skip

    IOLoop.current().add_callback(start)


def main():
    what, at, *names = sys.argv[1:]
    {"produce": produce, "consume": consume}[what](at, *names)
    loop = IOLoop.current()

    def end():
        sys.stdin.read()
        loop.add_callback(loop.stop)

    threading.Thread(target=end, daemon=True).start()
    tell(started=True)
    loop.start()


if __name__ == "__main__":
    main()
