"""The commands: `penstock`, `nsqd` and `nsqlookupd`."""
