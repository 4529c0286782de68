"""nsqd's HTTP API: publishing, topics and channels, settings, and what `nsqd.NsqHttp` tells of the broker itself."""
