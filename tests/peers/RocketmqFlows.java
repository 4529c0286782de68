// What users of RocketMQ's Java client do, a flow each. A flow prints JSON objects that are the same with each right broker.

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

class RocketmqFlows {
    static final int READY_MS = 60_000;
    static String registry;
    static String topic;

    public static void main(String[] words) {
        int code = 0;
        try {
            registry = words[1];
            topic = words[2];
            switch (words[0]) {
                case "kinds": kinds(); break;
                case "batches": batches(); break;
                case "refusals": refusals(); break;
                case "orderly": orderly(); break;
                case "broadcast": broadcast(); break;
                case "lite": lite(); break;
                case "pull": pull(); break;
                case "retry": retry(); break;
                case "delay": delay(); break;
                case "transactions": transactions(); break;
                case "tags": filter(MessageSelector.byTag("TagA || TagC")); break;
                case "sql": filter(MessageSelector.bySql("n BETWEEN 3 AND 11 AND TAGS IN ('TagA', 'TagB')")); break;
                case "sharing": sharing(); break;
                case "namespace": namespace(); break;
                case "trace": trace(); break;
                case "looking": looking(); break;
                case "returned": returned(); break;
                case "paused": paused(); break;
                default: throw new IllegalArgumentException(words[0]);
            }
        } catch (Throwable error) {
            error.printStackTrace();
            code = 1;
        }
        System.exit(code);
    }

    // -- tools

    static synchronized void tell(Object... pairs) {
        StringBuilder line = new StringBuilder("{");
        for (int n = 0; n < pairs.length; n += 2) {
            if (n > 0) line.append(", ");
            line.append(quoted(pairs[n])).append(": ").append(json(pairs[n + 1]));
        }
        System.out.println(line.append("}"));
    }

    static String json(Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) return String.valueOf(value);
        if (value instanceof Collection) {
            List<String> parts = new ArrayList<>();
            for (Object one : (Collection<?>) value) parts.add(json(one));
            return "[" + String.join(", ", parts) + "]";
        }
        return quoted(value);
    }

    static String quoted(Object value) {
        return "\"" + String.valueOf(value).replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    }

    static void await(BooleanSupplier done) throws Exception {
        long end = System.currentTimeMillis() + READY_MS;
        while (!done.getAsBoolean()) {
            if (System.currentTimeMillis() > end) throw new AssertionError("it did not come");
            Thread.sleep(20);
        }
    }

    static DefaultMQProducer producer(String group) throws Exception {
        return started(new DefaultMQProducer(group));
    }

    static <P extends DefaultMQProducer> P started(P producer) throws Exception {
        producer.setNamesrvAddr(registry);
        producer.setSendMsgTimeout(20_000);
        producer.setInstanceName(producer.getProducerGroup());
        producer.start();
        return producer;
    }

    static DefaultMQPushConsumer consumer(String group, String instance) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(registry);
        consumer.setInstanceName(instance);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    static Message message(String tags, int n) {
        Message made = new Message(topic, tags, "key-" + n, text("body " + n));
        made.putUserProperty("n", String.valueOf(n));
        return made;
    }

    static byte[] text(String words) {
        return words.getBytes(StandardCharsets.UTF_8);
    }

    static String text(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    /** All that the topic holds, as bodies. */
    static List<String> held(String of) throws Exception {
        DefaultMQPullConsumer reader = new DefaultMQPullConsumer("flow-readers");
        reader.setNamesrvAddr(registry);
        reader.start();
        List<String> found = new ArrayList<>();
        for (MessageQueue queue : reader.fetchSubscribeMessageQueues(of)) {
            for (long at = reader.minOffset(queue), end = reader.maxOffset(queue); at < end; ) {
                PullResult pulled = reader.pull(queue, "*", at, 32);
                if (pulled.getMsgFoundList() != null) for (MessageExt one : pulled.getMsgFoundList()) found.add(text(one));
                at = pulled.getNextBeginOffset();
            }
        }
        reader.shutdown();
        Collections.sort(found);
        return found;
    }

    // -- flows

    /** Each way of sending one message. */
    static void kinds() throws Exception {
        DefaultMQProducer producer = producer("kinds");
        producer.setCompressMsgBodyOverHowmuch(1000);
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        tell("queues", queues.size());
        SendResult result = producer.send(message("TagA", 1));
        tell("how", "sync", "status", result.getSendStatus(), "topic", result.getMessageQueue().getTopic());
        result = producer.send(message("TagA", 2), queues.get(1));
        tell("how", "to a queue", "status", result.getSendStatus(), "queue", result.getMessageQueue().getQueueId());
        result = producer.send(message("TagA", 3), (all, made, key) -> all.get((Integer) key % all.size()), 7);
        tell("how", "selected", "status", result.getSendStatus(), "queue", result.getMessageQueue().getQueueId());
        CountDownLatch answered = new CountDownLatch(20);
        AtomicInteger good = new AtomicInteger();
        for (int n = 0; n < 20; n++) producer.send(message("TagB", 100 + n), new SendCallback() {
            @Override
            public void onSuccess(SendResult sent) {
                good.incrementAndGet();
                answered.countDown();
            }

            @Override
            public void onException(Throwable error) {
                error.printStackTrace();
                answered.countDown();
            }
        });
        answered.await();
        tell("how", "async", "good", good.get());
        for (int n = 0; n < 5; n++) producer.sendOneway(message("TagC", 200 + n));
        char[] long_ = new char[100_000];
        Arrays.fill(long_, 'x');
        result = producer.send(new Message(topic, text(new String(long_))));
        tell("how", "compressed", "status", result.getSendStatus());
        await(() -> {
            try {
                return held(topic).size() == 29;
            } catch (Exception error) {
                throw new AssertionError(error);
            }
        });
        tell("held", held(topic));
        producer.shutdown();
    }

    static void batches() throws Exception {
        DefaultMQProducer producer = producer("batches");
        List<Message> batch = new ArrayList<>();
        for (int n = 0; n < 50; n++) batch.add(message("TagA", n));
        SendResult result = producer.send(batch);
        tell("status", result.getSendStatus(), "ids", result.getMsgId().split(",").length,
            "offset ids", result.getOffsetMsgId().split(",").length);
        batch.get(3).setDelayTimeLevel(1);
        try {
            producer.send(batch);
        } catch (MQClientException | UnsupportedOperationException refused) {
            tell("refused", "a delayed message in a batch");
        }
        tell("held", held(topic));
        producer.shutdown();
    }

    /** What is not taken, and by which code. */
    static void refusals() throws Exception {
        DefaultMQProducer producer = producer("refusals");
        producer.setMaxMessageSize(8 << 20);
        producer.setCompressMsgBodyOverHowmuch(64 << 20);
        try {
            producer.send(new Message(topic, new byte[5 << 20]));
        } catch (MQBrokerException error) {
            tell("what", "large", "code", error.getResponseCode());
        }
        Message wide = message("TagA", 1);
        char[] value = new char[40_000];
        Arrays.fill(value, 'v');
        wide.putUserProperty("wide", new String(value));
        try {
            producer.send(wide);
        } catch (MQBrokerException error) {
            tell("what", "properties", "code", error.getResponseCode());
        }
        try {
            producer.send(new Message("SCHEDULE_TOPIC_XXXX", text("x")));
        } catch (MQClientException | MQBrokerException error) {
            tell("what", "system topic", "kind", error.getClass().getSimpleName());
        }
        try {
            producer.viewMessage(topic, "7F0000010000000000000000DEADBEEF");
        } catch (Exception error) {
            tell("what", "no such message", "kind", error.getClass().getSimpleName());
        }
        tell("held", held(topic));
        producer.shutdown();
    }

    /** In the order of each queue, though the third of each is put off once. */
    static void orderly() throws Exception {
        DefaultMQProducer producer = producer("orderly");
        for (int n = 0; n < 40; n++) {
            producer.send(message("TagA", n), (queues, made, key) -> queues.get((Integer) key % queues.size()), n);
        }
        DefaultMQPushConsumer consumer = consumer("orderly-" + topic, "one");
        Map<Integer, List<String>> seen = new ConcurrentHashMap<>();
        Set<String> putOff = ConcurrentHashMap.newKeySet();
        AtomicInteger count = new AtomicInteger();
        consumer.subscribe(topic, "*");
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            MessageExt one = messages.get(0);
            if (one.getQueueOffset() == 2 && putOff.add(text(one))) return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            seen.computeIfAbsent(one.getQueueId(), id -> Collections.synchronizedList(new ArrayList<>())).add(text(one));
            count.incrementAndGet();
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        await(() -> count.get() == 40);
        for (Map.Entry<Integer, List<String>> one : new TreeMap<>(seen).entrySet())
            tell("queue", one.getKey(), "seen", one.getValue());
        tell("put off", new TreeSet<>(putOff));
        consumer.shutdown();
        producer.shutdown();
    }

    static void broadcast() throws Exception {
        DefaultMQProducer producer = producer("broadcast");
        for (int n = 0; n < 20; n++) producer.send(message("TagA", n));
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        List<Set<String>> seen = new ArrayList<>();
        for (int k = 0; k < 2; k++) {
            DefaultMQPushConsumer consumer = consumer("broadcast-" + topic, "one-" + k);
            var model = consumer.getMessageModel(); // its package is another one in 5.x
            consumer.setMessageModel(model.valueOf("BROADCASTING"));
            Set<String> mine = ConcurrentHashMap.newKeySet();
            seen.add(mine);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt one : messages) mine.add(text(one));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
        }
        await(() -> seen.get(0).size() == 20 && seen.get(1).size() == 20);
        for (Set<String> mine : seen) tell("seen", new TreeSet<>(mine));
        for (DefaultMQPushConsumer consumer : consumers) consumer.shutdown();
        producer.shutdown();
    }

    static void lite() throws Exception {
        DefaultMQProducer producer = producer("lite");
        for (int n = 0; n < 30; n++) producer.send(message("TagA", n));
        DefaultLitePullConsumer joined = new DefaultLitePullConsumer("lite-" + topic);
        joined.setNamesrvAddr(registry);
        joined.setInstanceName("joined");
        joined.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        joined.setAutoCommit(false);
        joined.subscribe(topic, "*");
        joined.start();
        Set<String> seen = new TreeSet<>();
        await(() -> {
            for (MessageExt one : joined.poll(200)) seen.add(text(one));
            return seen.size() == 30;
        });
        joined.commitSync();
        tell("joined", seen);
        joined.shutdown();
        DefaultLitePullConsumer apart = new DefaultLitePullConsumer("lite-apart-" + topic);
        apart.setNamesrvAddr(registry);
        apart.setInstanceName("apart");
        apart.setAutoCommit(false);
        apart.start();
        List<MessageQueue> queues = new ArrayList<>(apart.fetchMessageQueues(topic));
        Collections.sort(queues);
        apart.assign(queues.subList(0, 1));
        apart.seek(queues.get(0), 1);
        List<Long> offsets = new ArrayList<>();
        await(() -> {
            for (MessageExt one : apart.poll(200)) offsets.add(one.getQueueOffset());
            return offsets.size() >= 3;
        });
        tell("from", offsets.get(0), "then", offsets.get(1));
        apart.seekToBegin(queues.get(0));
        List<Long> again = new ArrayList<>();
        await(() -> {
            for (MessageExt one : apart.poll(200)) again.add(one.getQueueOffset());
            return !again.isEmpty();
        });
        tell("again from", again.get(0));
        tell("at time 0", apart.offsetForTimestamp(queues.get(0), 0L));
        apart.shutdown();
        producer.shutdown();
    }

    static void pull() throws Exception {
        DefaultMQProducer producer = producer("pull");
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        MessageQueue queue = queues.get(0);
        for (int n = 0; n < 10; n++) producer.send(message(n % 2 == 0 ? "TagA" : "TagB", n), queue);
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("pull-" + topic);
        consumer.setNamesrvAddr(registry);
        consumer.setInstanceName("pull");
        consumer.start();
        PullResult found = consumer.pull(queue, "TagB", 0, 32);
        List<String> bodies = new ArrayList<>();
        for (MessageExt one : found.getMsgFoundList()) bodies.add(text(one));
        tell("status", found.getPullStatus(), "next", found.getNextBeginOffset(), "bodies", bodies,
            "first", found.getMinOffset(), "end", found.getMaxOffset());
        found = consumer.pull(queue, "TagZ", 0, 32);
        tell("status", found.getPullStatus(), "next", found.getNextBeginOffset());
        found = consumer.pull(queue, "*", 10, 32);
        tell("status", found.getPullStatus(), "next", found.getNextBeginOffset());
        found = consumer.pull(queue, "*", 1_000, 32);
        tell("status", found.getPullStatus(), "next", found.getNextBeginOffset());
        tell("committed before", consumer.fetchConsumeOffset(queue, true));
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(queue, 6, false);
        await(() -> {
            try {
                return consumer.fetchConsumeOffset(queue, true) == 6;
            } catch (MQClientException error) {
                throw new AssertionError(error);
            }
        });
        tell("committed", consumer.fetchConsumeOffset(queue, true));
        long asked = System.currentTimeMillis();
        new Thread(() -> {
            try {
                Thread.sleep(500);
                producer.send(message("TagA", 99), queue);
            } catch (Exception error) {
                error.printStackTrace();
            }
        }).start();
        found = consumer.pullBlockIfNotFound(queue, "*", 10, 32);
        tell("held", found.getPullStatus(), "waited", System.currentTimeMillis() - asked >= 400, "end", found.getMaxOffset());
        consumer.shutdown();
        producer.shutdown();
    }

    /** Given back twice, then once too often. */
    static void retry() throws Exception {
        DefaultMQProducer producer = producer("retry");
        for (int n = 0; n < 4; n++) producer.send(message("TagA", n));
        String group = "retry-" + topic;
        DefaultMQPushConsumer consumer = consumer(group, "one");
        consumer.setMaxReconsumeTimes(2);
        consumer.setConsumeMessageBatchMaxSize(1);
        Map<String, List<String>> seen = new ConcurrentHashMap<>();
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt one = messages.get(0);
            List<String> mine = seen.computeIfAbsent(text(one), key -> Collections.synchronizedList(new ArrayList<>()));
            mine.add(one.getReconsumeTimes() + " " + one.getTopic().equals(topic) + " " + one.getTags() + " " + one.getKeys());
            boolean given = text(one).equals("body 0") ? one.getReconsumeTimes() < 1 : text(one).equals("body 1");
            return given ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        await(() -> seen.size() == 4 && seen.get("body 1").size() == 3 && seen.get("body 0").size() == 2);
        for (Map.Entry<String, List<String>> one : new TreeMap<>(seen).entrySet())
            tell("body", one.getKey(), "seen", one.getValue());
        DefaultMQPullConsumer reader = new DefaultMQPullConsumer("dead-" + topic);
        reader.setNamesrvAddr(registry);
        reader.setInstanceName("dead");
        reader.start();
        MessageQueue dead = new MessageQueue("%DLQ%" + group, "broker-a", 0);
        List<MessageExt> found = new ArrayList<>();
        await(() -> {
            try {
                PullResult pulled = reader.pull(dead, "*", 0, 32);
                if (pulled.getMsgFoundList() != null) found.addAll(pulled.getMsgFoundList());
            } catch (MQBrokerException | MQClientException error) { // it is not there yet
            } catch (Exception error) {
                throw new AssertionError(error);
            }
            return !found.isEmpty();
        });
        MessageExt one = found.get(0);
        tell("dead", text(one), "times", one.getReconsumeTimes(), "from", one.getProperty("RETRY_TOPIC").equals(topic),
            "key", one.getKeys(), "n", one.getUserProperty("n"));
        reader.shutdown();
        consumer.shutdown();
        producer.shutdown();
    }

    static void delay() throws Exception {
        DefaultMQProducer producer = producer("delay");
        Message late = message("TagA", 1);
        late.setDelayTimeLevel(3);
        long sent = System.currentTimeMillis();
        tell("status", producer.send(late).getSendStatus());
        DefaultMQPushConsumer consumer = consumer("delay-" + topic, "one");
        CountDownLatch came = new CountDownLatch(1);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt one = messages.get(0);
            tell("late", System.currentTimeMillis() - sent >= 900, "level", one.getDelayTimeLevel(), "topic", one.getTopic().equals(topic),
                "real topic", one.getProperty("REAL_TOPIC") != null && one.getProperty("REAL_TOPIC").equals(topic), "tags", one.getTags());
            came.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        came.await();
        consumer.shutdown();
        producer.shutdown();
    }

    /** Committed, rolled back, and not decided until the broker asks: then by the number. */
    static void transactions() throws Exception {
        Set<String> asked = ConcurrentHashMap.newKeySet();
        TransactionMQProducer producer = new TransactionMQProducer("transactions-" + topic);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message made, Object how) {
                return (LocalTransactionState) how;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                asked.add(text(message) + " " + message.getTopic().equals(topic) + " " + message.getKeys());
                return text(message).equals("body 4") ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        started(producer);
        LocalTransactionState[] how = {LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE,
            LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.UNKNOW, LocalTransactionState.UNKNOW};
        for (int n = 0; n < how.length; n++)
            tell("n", n, "status", producer.sendMessageInTransaction(message("TagA", n), how[n]).getSendStatus());
        Set<String> seen = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = consumer("transactions-readers-" + topic, "one");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt one : messages) seen.add(text(one) + " " + (one.getTransactionId() != null));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        await(() -> asked.size() == 2 && seen.size() == 3);
        tell("asked", new TreeSet<>(asked), "seen", new TreeSet<>(seen));
        consumer.shutdown();
        producer.shutdown();
    }

    static void filter(MessageSelector selector) throws Exception {
        DefaultMQProducer producer = producer("filter");
        for (int n = 0; n < 20; n++) producer.send(message("Tag" + (char) ('A' + n % 4), n));
        DefaultMQPushConsumer consumer = consumer("filter-" + topic, "one");
        Set<String> seen = ConcurrentHashMap.newKeySet();
        consumer.subscribe(topic, selector);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt one : messages) seen.add(text(one));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        await(() -> seen.size() >= 4);
        Thread.sleep(1_500); // what is too much would be here by then
        tell("seen", new TreeSet<>(seen));
        consumer.shutdown();
        producer.shutdown();
    }

    /** Two members share the queues; when one leaves, the other takes them all. */
    static void sharing() throws Exception {
        DefaultMQProducer producer = producer("sharing");
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        List<Set<Integer>> queues = new ArrayList<>();
        for (int k = 0; k < 2; k++) {
            DefaultMQPushConsumer consumer = consumer("sharing-" + topic, "one-" + k);
            Set<Integer> mine = ConcurrentHashMap.newKeySet();
            queues.add(mine);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt one : messages) mine.add(one.getQueueId());
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            members.add(consumer);
        }
        List<MessageQueue> all = producer.fetchPublishMessageQueues(topic);
        AtomicInteger n = new AtomicInteger();
        await(() -> {
            queues.forEach(Set::clear);
            send(producer, all, n);
            return queues.get(0).size() == 2 && queues.get(1).size() == 2;
        });
        tell("together", queues.get(0).size() + queues.get(1).size());
        members.get(0).shutdown();
        await(() -> {
            queues.get(1).clear();
            send(producer, all, n);
            return queues.get(1).size() == 4;
        });
        tell("alone", new TreeSet<>(queues.get(1)));
        members.get(1).shutdown();
        producer.shutdown();
    }

    static void send(DefaultMQProducer producer, List<MessageQueue> all, AtomicInteger n) {
        try {
            for (MessageQueue queue : all) producer.send(message("TagA", n.incrementAndGet()), queue);
            Thread.sleep(300);
        } catch (Exception error) {
            throw new AssertionError(error);
        }
    }

    @SuppressWarnings("deprecation")
    static void namespace() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("spaced");
        producer.setNamespace("MQ_INST_1");
        started(producer);
        DefaultMQPushConsumer consumer = consumer("spaced-" + topic, "one");
        consumer.setNamespace("MQ_INST_1");
        Set<String> seen = ConcurrentHashMap.newKeySet();
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt one : messages) seen.add(text(one) + " " + one.getTopic().equals(topic));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        for (int n = 0; n < 5; n++) tell("topic", producer.send(message("TagA", n)).getMessageQueue().getTopic().equals(topic));
        consumer.start();
        await(() -> seen.size() == 5);
        tell("seen", new TreeSet<>(seen));
        consumer.shutdown();
        producer.shutdown();
    }

    static void trace() throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer("traced-" + topic, true, null));
        String id = producer.send(message("TagA", 1)).getMsgId();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("traced-readers-" + topic, true, null);
        consumer.setNamesrvAddr(registry);
        consumer.setInstanceName("one");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        consumer.start();
        Set<String> kinds = new TreeSet<>();
        long end = System.currentTimeMillis() + 20_000; // 5.3.3 never says what it consumed, whoever the broker is
        while (kinds.size() < 3 && System.currentTimeMillis() < end) {
            for (String body : held("RMQ_SYS_TRACE_TOPIC"))
                for (String line : body.split("\u0002"))
                    if (line.contains(id)) kinds.add(line.split("\u0001")[0] + " " + line.split("\u0001").length);
            Thread.sleep(200);
        }
        tell("kinds", kinds);
        consumer.shutdown();
        producer.shutdown();
    }

    /** By identifier, key, offset and time. */
    static void looking() throws Exception {
        DefaultMQProducer producer = producer("looking");
        List<SendResult> sent = new ArrayList<>();
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        for (int n = 0; n < 10; n++) sent.add(producer.send(message("TagA", n % 5), queues.get(0)));
        MessageExt found = producer.viewMessage(topic, sent.get(3).getOffsetMsgId());
        tell("by offset id", text(found), "times", found.getReconsumeTimes(), "offset", found.getQueueOffset());
        found = producer.viewMessage(topic, sent.get(4).getMsgId());
        tell("by unique id", text(found));
        long now = System.currentTimeMillis();
        List<String> bodies = new ArrayList<>();
        await(() -> {
            try {
                QueryResult result = producer.queryMessage(topic, "key-2", 32, now - 3_600_000, now + 3_600_000);
                bodies.clear();
                for (MessageExt one : result.getMessageList()) bodies.add(text(one));
            } catch (MQClientException | InterruptedException notYet) {
                return false;
            }
            return bodies.size() == 2;
        });
        tell("by key", bodies);
        try {
            producer.queryMessage(topic, "no-such-key", 32, now - 3_600_000, now + 3_600_000);
        } catch (MQClientException error) {
            tell("no such key", error.getResponseCode());
        }
        tell("first", producer.minOffset(queues.get(0)), "end", producer.maxOffset(queues.get(0)),
            "at 0", producer.searchOffset(queues.get(0), 0), "empty", producer.maxOffset(queues.get(1)));
        tell("tomorrow", producer.searchOffset(queues.get(0), now + 86_400_000L));
        producer.shutdown();
    }

    /** Given back by a call of its own, with a level. */
    static void returned() throws Exception {
        DefaultMQProducer producer = producer("returned");
        producer.send(message("TagA", 1));
        String group = "returned-" + topic;
        DefaultMQPushConsumer consumer = consumer(group, "one");
        List<String> seen = Collections.synchronizedList(new ArrayList<>());
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt one = messages.get(0);
            seen.add(text(one) + " " + one.getReconsumeTimes());
            if (one.getReconsumeTimes() == 0) {
                try {
                    consumer.sendMessageBack(one, 1);
                } catch (Exception error) {
                    error.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        await(() -> seen.size() == 2);
        tell("seen", seen);
        consumer.shutdown();
        producer.shutdown();
    }

    /** A member that pauses takes nothing, and goes on where it was. */
    static void paused() throws Exception {
        DefaultMQProducer producer = producer("paused");
        DefaultMQPushConsumer consumer = consumer("paused-" + topic, "one");
        Set<String> seen = ConcurrentHashMap.newKeySet();
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt one : messages) seen.add(text(one));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        producer.send(message("TagA", 1));
        await(() -> seen.size() == 1);
        consumer.suspend();
        for (int n = 2; n < 6; n++) producer.send(message("TagA", n));
        consumer.resume();
        await(() -> seen.size() == 5);
        tell("seen", new TreeSet<>(seen));
        consumer.shutdown();
        DefaultMQPushConsumer next = consumer("paused-" + topic, "two");
        Set<String> rest = ConcurrentHashMap.newKeySet();
        next.subscribe(topic, "*");
        next.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt one : messages) rest.add(text(one));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        next.start();
        producer.send(message("TagA", 9));
        await(() -> rest.contains("body 9"));
        tell("to the next member", new TreeSet<>(rest));
        next.shutdown();
        producer.shutdown();
    }
}
