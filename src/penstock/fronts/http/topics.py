"""/topic/… and /channel/…: what is made, deleted, emptied and paused over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable

from penstock.broker.broker import Broker
from penstock.broker.nsq.registry import SLAVE
from penstock.broker.nsq.topics import Topic
from penstock.delivery.channel import Channel
from penstock.fronts.http.publishing import Publishing
from penstock.fronts.site import DONE, Answer, Handler, Request, refuse, topic_and_channel, valid_name


class Topics:
    """The routes of topics and channels."""

    def __init__(self, broker: Broker, publishing: Publishing) -> None:
        self.broker = broker
        self.publishing = publishing
        self.routes: dict[str, dict[str, Handler]] = {
            "/topic/create": {"POST": self._create_topic},
            "/topic/delete": {"POST": self._delete_topic},
            "/topic/empty": {"POST": self._empty_topic},
            "/topic/pause": {"POST": lambda request: self._pause_topic(request, True)},
            "/topic/unpause": {"POST": lambda request: self._pause_topic(request, False)},
            "/channel/create": {"POST": self._create_channel},
            "/channel/delete": {"POST": self._delete_channel},
            "/channel/empty": {"POST": self._empty_channel},
            "/channel/pause": {"POST": lambda request: self._pause_channel(request, True)},
            "/channel/unpause": {"POST": lambda request: self._pause_channel(request, False)},
        }
        for methods in self.routes.values():
            methods["POST"] = self._at_master(methods["POST"])

    def _at_master(self, handler: Handler) -> Handler:
        """A slave changes nothing by itself: it has what its master says, and would differ from it until it says it again."""

        def changed(request: Request) -> Answer | Awaitable[Answer]:
            if self.broker.store.following:
                raise refuse(503, SLAVE)
            return handler(request)

        return changed

    def _known_topic(self, request: Request, check: bool = False) -> Topic:
        if "topic" not in request.query:
            raise refuse(400, "MISSING_ARG_TOPIC")
        name = request.query["topic"]
        if check and not valid_name(name):
            raise refuse(400, "INVALID_TOPIC")
        topic = self.broker.queueing.find(name.encode()) if valid_name(name) else None
        if topic is None:
            raise refuse(404, "TOPIC_NOT_FOUND")
        return topic

    def _known_channel(self, request: Request) -> tuple[Topic, Channel]:
        topic_name, name = topic_and_channel(request.query)
        topic = self.broker.queueing.find(topic_name)
        if topic is None:
            raise refuse(404, "TOPIC_NOT_FOUND")
        channel = topic.channels.get(name)
        if channel is None:
            raise refuse(404, "CHANNEL_NOT_FOUND")
        return topic, channel

    def _create_topic(self, request: Request) -> Answer:
        self.publishing.topic_to_write(request.query)
        self.broker.queueing.write_table()
        return DONE

    def _delete_topic(self, request: Request) -> Answer:
        self.broker.queueing.delete(self._known_topic(request))
        self.broker.queueing.write_table()
        return DONE

    def _empty_topic(self, request: Request) -> Answer:
        self._known_topic(request, check=True).empty()
        return DONE

    def _pause_topic(self, request: Request, pause: bool) -> Answer:
        topic = self._known_topic(request)
        (topic.pause if pause else topic.unpause)()
        self.broker.queueing.write_table()
        return DONE

    def _create_channel(self, request: Request) -> Answer:
        topic_name, name = topic_and_channel(request.query)
        topic = self.broker.queueing.find(topic_name)
        if topic is None:
            raise refuse(404, "TOPIC_NOT_FOUND")
        topic.channel(name)
        self.broker.queueing.write_table()
        return DONE

    def _delete_channel(self, request: Request) -> Answer:
        topic, channel = self._known_channel(request)
        topic.delete_channel(channel.name)
        self.broker.queueing.write_table()
        return DONE

    def _empty_channel(self, request: Request) -> Answer:
        topic, channel = self._known_channel(request)
        topic.empty_channel(channel)
        return DONE

    def _pause_channel(self, request: Request, pause: bool) -> Answer:
        topic, channel = self._known_channel(request)
        topic.pause_channel(channel, pause)
        self.broker.queueing.write_table()
        return DONE
