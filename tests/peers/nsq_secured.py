"""A program on the unchanged `pynsq` package: it logs in, over TLS if there is an authority's file, publishes and reads.

    python nsq_secured.py HOST:PORT TOPIC SECRET [CA]

Prints one JSON object a line: what was published, the body of what came, or an error; ends after a body or an error.
"""

import json
import ssl
import sys

import nsq
from tornado.ioloop import IOLoop


def tell(**fields):
    print(json.dumps(fields), flush=True)


def stop():
    IOLoop.current().call_later(0.3, IOLoop.current().stop)


class Errors:
    def _on_connection_error(self, conn, error, **more):
        tell(error=str(error))
        super()._on_connection_error(conn, error, **more)
        stop()


class Reader(Errors, nsq.Reader):
    pass


class Writer(Errors, nsq.Writer):
    topic = ""

    def _on_connection_ready(self, conn, **more):
        super()._on_connection_ready(conn, **more)
        IOLoop.current().call_later(0.1, self.publish)

    def publish(self):
        self.pub(self.topic, b"hello", lambda conn, data: None if isinstance(data, nsq.Error) else tell(published=True))


def main(address, topic, secret, authority=""):
    options = {"auth_secret": secret, "nsqd_tcp_addresses": [address]}
    if authority:
        options |= {"tls_v1": True, "tls_options": {"ca_certs": authority, "cert_reqs": ssl.CERT_REQUIRED}}

    def handle(message):
        tell(body=message.body.decode())
        stop()
        return True

    async def start():
        Writer.topic = topic
        Writer(**options)
        Reader(topic, "ch", message_handler=handle, **options)

    IOLoop.current().add_callback(start)
    IOLoop.current().call_later(30, IOLoop.current().stop)
    IOLoop.current().start()


if __name__ == "__main__":
    main(*sys.argv[1:])
