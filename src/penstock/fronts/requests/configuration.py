"""The broker's settings under RocketMQ's names, for tools that read them: those that mean something here, with true values."""

from __future__ import annotations

import os

from penstock import msgid, words
from penstock.broker.broker import Broker
from penstock.fronts.requests.lookup import QUERY_MAX, UNIQUE_QUERY_MAX
from penstock.wire import names


def properties(broker: Broker, users: bool = False) -> dict[str, object]:
    """By name, sorted; `users`: whether there are any."""
    config, folder = broker.config, broker.folder.absolute()
    host = msgid.unpack_host(broker.store_host).rpartition(":")[0]
    found: dict[str, object] = {
        # who it is
        "brokerName": config.broker_name, "brokerClusterName": config.cluster_name, "brokerId": config.broker_id,
        "brokerIP1": host, "brokerIP2": host, "listenPort": config.remoting_port, "namesrvAddr": config.registry,
        "brokerRole": _role(broker), "haListenPort": config.ha_port,
        "brokerPermission": words.PERM_READ | words.PERM_WRITE, "regionId": "DefaultRegion",
        "registerNameServerPeriod": config.register_broker_period_ms, "compressedRegister": False,
        "fetchNamesrvAddrByAddressServer": False, "serverChannelMaxIdleTimeSeconds": config.idle_timeout_ms // words.MS_A_SECOND,
        "aclEnable": users, "useTLS": bool(config.tls_cert) and config.remoting_tls != "off",
        # topics and groups
        "autoCreateTopicEnable": config.auto_create_topic_enable, "defaultTopicQueueNums": config.default_topic_queue_nums,
        "autoCreateSubscriptionGroup": config.auto_create_subscription_group, "clusterTopicEnable": True,
        "brokerTopicEnable": True, "notifyConsumerIdsChangedEnable": True,
        # messages
        "maxMessageSize": config.max_message_size, "messageDelayLevel": config.message_delay_level,
        "longPollingEnable": config.long_polling_enable, "enablePropertyFilter": True, "filterSupportRetry": True,
        "filterServerNums": 0, "enableCalcFilterBitMap": False, "enableConsumeQueueExt": False, "enableLmq": False,
        "enableMultiDispatch": False, "maxTransferCountOnMessageInMemory": words.PULL_COUNT,
        "maxTransferBytesOnMessageInMemory": words.PULL_BYTES, "defaultQueryMaxNum": UNIQUE_QUERY_MAX,
        "maxMsgsNumBatch": QUERY_MAX, "storeReplyMessageEnable": True, "brokerFastFailureEnable": False,
        "disableConsumeIfConsumerReadSlowly": False, "rejectTransactionMessage": False,
        "transactionTimeOut": config.transaction_timeout_ms, "transactionCheckMax": config.transaction_check_max,
        "transactionCheckInterval": config.transaction_check_interval_ms,
        "traceOn": True, "traceTopicEnable": True, "msgTraceTopicName": names.TRACE_TOPIC.decode(),
        # the store
        "flushDiskType": "SYNC_FLUSH" if config.level == "disk" else "ASYNC_FLUSH", "syncFlushTimeout": 5000,
        "storePathRootDir": folder, "storePathCommitLog": folder / "commitlog",
        "mappedFileSizeCommitLog": config.mapped_file_size_commit_log,
        "mappedFileSizeConsumeQueue": config.mapped_file_size_consume_queue, "messageIndexEnable": True,
        "maxHashSlotNum": config.max_hash_slot_num, "maxIndexNum": config.max_index_num, "checkCRCOnRecover": True,
        "fileReservedTime": config.file_reserved_time_hours, "deleteWhen": f"{config.delete_when:02d}",
        "diskMaxUsedSpaceRatio": config.disk_used_clean_percent, "cleanFileForciblyEnable": True,
        "transientStorePoolEnable": False, "enableDLegerCommitLog": False, "duplicationEnable": False,
        "slaveReadEnable": config.slave_read_enable,
        "accessMessageInMemoryMaxRatio": config.access_message_in_memory_max_ratio,
        "offsetCheckInSlave": False, "warmMapedFileEnable": False,
        "clientCallbackExecutorThreads": os.cpu_count() or 1,  # exportMetrics calls it the number of processors
    }  # fmt: skip
    return dict(sorted(found.items()))


def _role(broker: Broker) -> str:
    """RocketMQ's word: a master is synchronous where new topics wait for a slave."""
    if broker.config.role == "slave":
        return "SLAVE"
    return "SYNC_MASTER" if broker.config.level.startswith("pair") else "ASYNC_MASTER"


def text(broker: Broker, users: bool) -> str:
    """As a properties file."""
    return "".join(f"{name}={_written(value)}\n" for name, value in properties(broker, users).items())


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
