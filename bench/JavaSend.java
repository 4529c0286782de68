// RocketMQ's own Java client: THREADS threads, each sends one message of 200 bytes after the other, synchronously, through one
// producer. Says "begin" when it is warm, and how many were stored in the SECONDS after that.
// java -cp 'jars/*' JavaSend.java NAME_SERVER TOPIC THREADS WARM_UP_SECONDS SECONDS
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

public class JavaSend {
    static volatile boolean measured, over;

    public static void main(String[] given) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr(given[0]);
        producer.start();
        LongAdder stored = new LongAdder(), failed = new LongAdder();
        Thread[] threads = new Thread[Integer.parseInt(given[2])];
        for (int n = 0; n < threads.length; n++) {
            threads[n] = new Thread(() -> {
                byte[] body = new byte[200];
                while (!over) {
                    boolean counts = measured;
                    try {
                        boolean ok = producer.send(new Message(given[1], "TagA", body)).getSendStatus() == SendStatus.SEND_OK;
                        if (counts) (ok ? stored : failed).increment();
                    } catch (Exception error) {
                        if (counts) failed.increment();
                    }
                }
            });
            threads[n].start();
        }
        Thread.sleep(1000 * Long.parseLong(given[3]));
        measured = true;
        System.out.println("begin");
        long begun = System.nanoTime();
        Thread.sleep(1000 * Long.parseLong(given[4]));
        long messages = stored.sum(), took = System.nanoTime() - begun;
        System.out.println("{\"messages\": " + messages + ", \"failed\": " + failed.sum() + ", \"seconds\": " + took / 1e9 + "}");
        System.out.flush();
        over = true;
        for (Thread thread : threads) thread.join();
        producer.shutdown();
    }
}
