"""The NSQ front: connections, sessions, publishing, commands. `front.NsqFront` is the door."""
