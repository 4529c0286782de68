"""The RocketMQ front: sessions, sends, pulls, and what they share. `front.BrokerFront` is the door."""
