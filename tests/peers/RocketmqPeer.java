// The Java client of RocketMQ 4.9: sends and reads topics, and prints one JSON object for every message.

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.zip.CRC32;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.parser.SelectorParser;
import org.apache.rocketmq.remoting.RPCHook;

class RocketmqPeer {
    /** Signs each request where -Dpeer.user and -Dpeer.secret say whose they are. */
    static RPCHook hook() {
        String user = System.getProperty("peer.user"), secret = System.getProperty("peer.secret");
        return user == null ? null : new AclClientRPCHook(new SessionCredentials(user, secret));
    }

    public static void main(String[] words) throws Exception {
        String what = words[0], registry = words[1], topic = words[2];
        int code = 0; // the end is said aloud: the client's threads are many, and not all of them daemons
        try {
            if (what.equals("send")) {
                send(registry, topic, Integer.parseInt(words[3]));
            } else if (what.equals("read")) {
                read(registry, topic);
            } else if (what.equals("subscribe")) {
                subscribe(registry, topic, Integer.parseInt(words[3]), words[4]);
            } else if (what.equals("select")) {
                select(words[3]);
            } else if (what.equals("request")) {
                request(registry, topic, Integer.parseInt(words[3]));
            } else {
                throw new IllegalArgumentException(what);
            }
        } catch (Throwable error) {
            error.printStackTrace();
            code = 1;
        }
        System.exit(code);
    }

    /** Messages with a property n below `count`, to a consumer that asks for some of them; ends with the last, n = count. */
    static void subscribe(String registry, String topic, int count, String expression) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("peer-sql-producers");
        producer.setNamesrvAddr(registry);
        producer.start();
        for (int n = 0; n <= count; n++) {
            Message made = new Message(topic, String.valueOf(n).getBytes(StandardCharsets.UTF_8));
            made.putUserProperty("n", String.valueOf(n));
            producer.send(made);
        }
        CountDownLatch last = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("peer-sql");
        consumer.setNamesrvAddr(registry);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, MessageSelector.bySql("n = " + count + " OR " + expression));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                synchronized (System.out) {
                    System.out.println("{\"n\":" + new String(message.getBody(), StandardCharsets.UTF_8) + "}");
                }
                if (message.getUserProperty("n").equals(String.valueOf(count))) last.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        last.await();
        Thread.sleep(2_000); // what other queues hold
        consumer.shutdown();
        producer.shutdown();
    }

    /** What its filter makes of each line of a file: an expression, and names and values, with tabs between them. */
    static void select(String path) throws Exception {
        for (String line : Files.readAllLines(Paths.get(path), StandardCharsets.UTF_8)) {
            String[] words = line.split("\t", -1), answers = {"refused"};
            Map<String, Object> properties = new HashMap<>();
            for (int n = 1; n + 1 < words.length; n += 2) properties.put(words[n], words[n + 1]);
            try {
                Expression compiled = SelectorParser.parse(words[0]);
                answers[0] = "no";
                Object found = compiled.evaluate(new EvaluationContext() {
                    @Override
                    public Object get(String name) {
                        return properties.get(name);
                    }

                    @Override
                    public Map<String, Object> keyValues() {
                        return properties;
                    }
                });
                if (Boolean.TRUE.equals(found)) answers[0] = "yes";
            } catch (Throwable error) { // what cannot be compiled is refused, what cannot be compared does not match
            }
            System.out.println("{\"answer\":\"" + answers[0] + "\"}");
        }
    }

    /** Request-reply: a consumer replies to requests of both kinds, and to none whose body begins with a dash. */
    static void request(String registry, String topic, int count) throws Exception {
        DefaultMQProducer responder = new DefaultMQProducer("peer-responders");
        responder.setInstanceName("responder");
        responder.setNamesrvAddr(registry);
        responder.start();
        DefaultMQProducer requester = new DefaultMQProducer("peer-requesters");
        requester.setInstanceName("requester");
        requester.setNamesrvAddr(registry);
        requester.start();
        responder.send(new Message(topic, "-first: the topic is there".getBytes(StandardCharsets.UTF_8)));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("peer-repliers");
        consumer.setNamesrvAddr(registry);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String text = new String(message.getBody(), StandardCharsets.UTF_8);
                if (text.startsWith("-")) continue;
                try {
                    byte[] reply = ("re: " + text).getBytes(StandardCharsets.UTF_8);
                    responder.send(MessageUtil.createReplyMessage(message, reply), 5_000);
                } catch (Exception error) {
                    error.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        for (int n = 0; n < count; n++) {
            Message reply = requester.request(new Message(topic, ("sync " + n).getBytes(StandardCharsets.UTF_8)), 20_000);
            System.out.println("{\"how\":\"sync\",\"reply\":\"" + new String(reply.getBody(), StandardCharsets.UTF_8) + "\"}");
        }
        CountDownLatch answered = new CountDownLatch(count);
        for (int n = 0; n < count; n++) {
            requester.request(new Message(topic, ("async " + n).getBytes(StandardCharsets.UTF_8)), new RequestCallback() {
                @Override
                public void onSuccess(Message reply) {
                    synchronized (System.out) {
                        System.out.println("{\"how\":\"async\",\"reply\":\"" + new String(reply.getBody(), StandardCharsets.UTF_8) + "\"}");
                    }
                    answered.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    error.printStackTrace();
                    answered.countDown();
                }
            }, 20_000);
        }
        answered.await();
        try {
            requester.request(new Message(topic, "-nobody".getBytes(StandardCharsets.UTF_8)), 1_500);
        } catch (RequestTimeoutException error) {
            System.out.println("{\"how\":\"late\",\"reply\":\"\"}");
        }
        requester.shutdown();
        consumer.shutdown();
        responder.shutdown();
    }

    /** A body that tells its number; every seventh is long enough to be compressed. */
    static byte[] body(int number) {
        StringBuilder text = new StringBuilder("body " + number + " ");
        for (int n = 0; n < (number % 7 == 0 ? 2000 : number % 40); n++) text.append((char) ('a' + (number + n) % 26));
        return text.toString().getBytes(StandardCharsets.UTF_8);
    }

    static Message message(String topic, int number) {
        Message made = new Message(topic, number % 3 == 0 ? "" : "Tag" + number % 5, "key-" + number, body(number));
        if (number % 4 == 0) made.putUserProperty("origin", "número " + number);
        made.setFlag(number);
        return made;
    }

    /** Single messages, batches of five, transactions of which every second is rolled back, and delayed ones. */
    static void send(String registry, String topic, int count) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("peer-producers", hook());
        producer.setNamesrvAddr(registry);
        producer.setCompressMsgBodyOverHowmuch(1000);
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object commit) {
                return (Boolean) commit ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        producer.start();
        producer.createTopic("TBW102", topic, 4);
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        for (int number = 0; number < count; ) {
            MessageQueue queue = queues.get(number % queues.size());
            switch (number % 10) {
                case 3:
                    List<Message> batch = new ArrayList<>();
                    for (int n = 0; n < 5; n++) batch.add(message(topic, number + n));
                    SendResult result = producer.send(batch, queue);
                    sent(number, result, "batch");
                    number += 5;
                    break;
                case 8:
                    boolean commit = number % 20 == 8;
                    sent(number, producer.sendMessageInTransaction(message(topic, number), commit),
                        commit ? "committed" : "rolled back");
                    number++;
                    break;
                case 9:
                    Message late = message(topic, number);
                    late.setDelayTimeLevel(1);
                    sent(number, producer.send(late, queue), "delayed");
                    number++;
                    break;
                default:
                    sent(number, producer.send(message(topic, number), queue), "single");
                    number++;
            }
        }
        producer.shutdown();
    }

    static void sent(int number, SendResult result, String how) {
        System.out.printf("{\"number\": %d, \"how\": \"%s\", \"status\": \"%s\", \"offset\": %d, \"queue\": %d}%n",
            number, how, result.getSendStatus(), result.getQueueOffset(), result.getMessageQueue().getQueueId());
    }

    /** Everything that the topic holds, queue by queue. */
    static void read(String registry, String topic) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("peer-readers", hook());
        consumer.setNamesrvAddr(registry);
        consumer.start();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long offset = consumer.minOffset(queue), end = consumer.maxOffset(queue);
            while (offset < end) {
                PullResult pulled = consumer.pull(queue, "*", offset, 32);
                if (pulled.getPullStatus() == PullStatus.FOUND) pulled.getMsgFoundList().forEach(RocketmqPeer::show);
                offset = pulled.getNextBeginOffset();
            }
        }
        consumer.shutdown();
    }

    static void show(MessageExt message) {
        CRC32 sum = new CRC32();
        sum.update(message.getBody());
        System.out.printf("{\"queue\": %d, \"offset\": %d, \"id\": \"%s\", \"physical\": %d, \"size\": %d, \"born\": \"%s\","
                + " \"store\": \"%s\", \"stored\": %d, \"sysFlag\": %d, \"flag\": %d, \"crc\": %d, \"length\": %d, \"keys\": %s,"
                + " \"tags\": %s, \"origin\": %s}%n",
            message.getQueueId(), message.getQueueOffset(), offsetId(message), message.getCommitLogOffset(),
            message.getStoreSize(), message.getBornHostString(), message.getStoreHost(), message.getStoreTimestamp(),
            message.getSysFlag(), message.getFlag(), sum.getValue(), message.getBody().length, quoted(message.getKeys()),
            quoted(message.getTags()), quoted(message.getUserProperty("origin")));
    }

    static String offsetId(MessageExt message) {
        return ((org.apache.rocketmq.common.message.MessageClientExt) message).getOffsetMsgId();
    }

    static String quoted(String text) {
        return text == null ? "null" : "\"" + text + "\"";
    }
}
