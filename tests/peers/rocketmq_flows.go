// What users of RocketMQ's Go client do, a flow each. A flow prints JSON objects that are the same with each right broker.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const readyFor = 60 * time.Second

var registry, topic string
var credentials primitive.Credentials

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func tell(pairs ...any) {
	line := map[string]any{}
	for n := 0; n < len(pairs); n += 2 {
		line[pairs[n].(string)] = pairs[n+1]
	}
	text, err := json.Marshal(line)
	must(err)
	fmt.Println(string(text))
}

func resolver() primitive.NsResolver { return primitive.NewPassthroughResolver([]string{registry}) }

func newProducer(more ...producer.Option) rocketmq.Producer {
	options := append([]producer.Option{
		producer.WithNsResolver(resolver()), producer.WithGroupName("go-" + topic), producer.WithSendMsgTimeout(20 * time.Second),
		producer.WithCredentials(credentials),
	}, more...)
	made, err := rocketmq.NewProducer(options...)
	must(err)
	must(made.Start())
	return made
}

func message(tags string, n int) *primitive.Message {
	made := primitive.NewMessage(topic, []byte(fmt.Sprintf("body %d", n)))
	made.WithTag(tags).WithKeys([]string{fmt.Sprintf("key-%d", n)}).WithProperty("n", fmt.Sprint(n))
	return made
}

// Bodies that a listener saw.
type seen struct {
	sync.Mutex
	bodies []string
}

func (s *seen) add(body string) {
	s.Lock()
	defer s.Unlock()
	s.bodies = append(s.bodies, body)
}

func (s *seen) different() []string {
	s.Lock()
	defer s.Unlock()
	found := map[string]bool{}
	for _, body := range s.bodies {
		found[body] = true
	}
	sorted := []string{}
	for body := range found {
		sorted = append(sorted, body)
	}
	sort.Strings(sorted)
	return sorted
}

func (s *seen) wait(count int) {
	end := time.Now().Add(readyFor)
	for len(s.different()) < count {
		if time.Now().After(end) {
			must(fmt.Errorf("it did not come: %v", s.different()))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

type listener = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func consume(group string, selector consumer.MessageSelector, listen listener, more ...consumer.Option) rocketmq.PushConsumer {
	options := append([]consumer.Option{
		consumer.WithNsResolver(resolver()), consumer.WithGroupName(group), consumer.WithCredentials(credentials),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, more...)
	made, err := rocketmq.NewPushConsumer(options...)
	must(err)
	must(made.Subscribe(topic, selector, listen))
	must(made.Start())
	return made
}

func take(into *seen) listener {
	return func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, one := range messages {
			into.add(string(one.Body))
		}
		return consumer.ConsumeSuccess, nil
	}
}

var all = consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}

func kinds() {
	sender := newProducer()
	result, err := sender.SendSync(context.Background(), message("TagA", 1))
	must(err)
	tell("how", "sync", "status", int(result.Status), "topic", result.MessageQueue.Topic == topic)
	var answered sync.WaitGroup
	answered.Add(10)
	for n := 0; n < 10; n++ {
		must(sender.SendAsync(context.Background(), func(_ context.Context, _ *primitive.SendResult, err error) {
			must(err)
			answered.Done()
		}, message("TagB", 10+n)))
	}
	answered.Wait()
	must(sender.SendOneWay(context.Background(), message("TagC", 30)))
	batch := []*primitive.Message{}
	for n := 0; n < 20; n++ {
		batch = append(batch, message("TagD", 40+n))
	}
	result, err = sender.SendSync(context.Background(), batch...)
	must(err)
	tell("how", "batch", "status", int(result.Status), "ids", len(strings.Split(result.MsgID, ",")))
	big := primitive.NewMessage(topic, []byte(strings.Repeat("x", 100_000)))
	result, err = sender.SendSync(context.Background(), big)
	must(err)
	tell("how", "compressed", "status", int(result.Status))
	var got seen
	reader := consume("go-kinds-"+topic, all, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, one := range messages {
			got.add(fmt.Sprintf("%.20s %s %s %s %d", one.Body, one.GetTags(), one.GetKeys(), one.GetProperty("n"), len(one.Body)))
		}
		return consumer.ConsumeSuccess, nil
	})
	got.wait(33)
	tell("got", got.different())
	must(reader.Shutdown())
	must(sender.Shutdown())
}

func filter(selector consumer.MessageSelector, count int) {
	sender := newProducer()
	for n := 0; n < 20; n++ {
		_, err := sender.SendSync(context.Background(), message(fmt.Sprintf("Tag%c", 'A'+n%4), n))
		must(err)
	}
	var got seen
	reader := consume("go-filter-"+topic, selector, take(&got))
	got.wait(count)
	time.Sleep(1500 * time.Millisecond) // what is too much would be here by then
	tell("got", got.different())
	must(reader.Shutdown())
	must(sender.Shutdown())
}

func orderly() {
	sender := newProducer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	for n := 0; n < 30; n++ {
		made := message("TagA", n)
		made.WithShardingKey(fmt.Sprint(n % 3))
		_, err := sender.SendSync(context.Background(), made)
		must(err)
	}
	var got seen
	reader := consume("go-orderly-"+topic, all, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, one := range messages {
			got.add(fmt.Sprintf("%s %s", one.GetShardingKey(), one.Body))
		}
		return consumer.ConsumeSuccess, nil
	}, consumer.WithConsumerOrder(true))
	got.wait(30)
	by := map[string][]string{}
	for _, one := range got.bodies {
		key, body, _ := strings.Cut(one, " ")
		by[key] = append(by[key], body)
	}
	tell("by key", by)
	must(reader.Shutdown())
	must(sender.Shutdown())
}

func retry() {
	sender := newProducer()
	_, err := sender.SendSync(context.Background(), message("TagA", 1))
	must(err)
	var got seen
	reader := consume("go-retry-"+topic, all, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		one := messages[0]
		got.add(fmt.Sprintf("%s %d %v", one.Body, one.ReconsumeTimes, one.GetKeys()))
		if one.ReconsumeTimes < 2 {
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	}, consumer.WithConsumeMessageBatchMaxSize(1))
	got.wait(3)
	tell("got", got.different())
	must(reader.Shutdown())
	must(sender.Shutdown())
}

func delay() {
	sender := newProducer()
	late := message("TagA", 1)
	late.WithDelayTimeLevel(2)
	began := time.Now()
	_, err := sender.SendSync(context.Background(), late)
	must(err)
	var got seen
	reader := consume("go-delay-"+topic, all, take(&got))
	got.wait(1)
	tell("got", got.different(), "late", time.Since(began) > 900*time.Millisecond)
	must(reader.Shutdown())
	must(sender.Shutdown())
}

type decides struct{ asked seen }

func (d *decides) ExecuteLocalTransaction(made *primitive.Message) primitive.LocalTransactionState {
	switch string(made.Body) {
	case "body 0":
		return primitive.CommitMessageState
	case "body 1":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (d *decides) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	d.asked.add(string(message.Body))
	if string(message.Body) == "body 2" {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func transactions() {
	var decided decides
	sender, err := rocketmq.NewTransactionProducer(&decided, producer.WithNsResolver(resolver()),
		producer.WithGroupName("go-transactions-"+topic), producer.WithCredentials(credentials))
	must(err)
	must(sender.Start())
	for n := 0; n < 4; n++ {
		_, err := sender.SendMessageInTransaction(context.Background(), message("TagA", n))
		must(err)
	}
	var got seen
	reader := consume("go-transactions-readers-"+topic, all, take(&got))
	got.wait(2)
	decided.asked.wait(2)
	tell("got", got.different(), "asked", decided.asked.different())
	must(reader.Shutdown())
	must(sender.Shutdown())
}

func broadcast() {
	sender := newProducer()
	readers, got := []rocketmq.PushConsumer{}, [2]seen{}
	for k := range got {
		readers = append(readers, consume("go-broadcast-"+topic, all, take(&got[k]),
			consumer.WithConsumerModel(consumer.BroadCasting), consumer.WithInstance(fmt.Sprintf("one-%d", k))))
	}
	// A reader by broadcast begins at the end: the ten are sent until both have begun.
	for end := time.Now().Add(readyFor); len(got[0].different()) < 10 || len(got[1].different()) < 10; {
		if time.Now().After(end) {
			must(fmt.Errorf("it did not come: %v", got[0].different()))
		}
		for n := 0; n < 10; n++ {
			_, err := sender.SendSync(context.Background(), message("TagA", n))
			must(err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	for k := range got {
		tell("got", got[k].different())
	}
	for _, reader := range readers {
		must(reader.Shutdown())
	}
	must(sender.Shutdown())
}

// One who replies. A client that has not told the broker of itself yet gets no reply: the request is sent again.
func requests() {
	sender := newProducer()
	replier := newProducer(producer.WithGroupName("go-replier-"+topic), producer.WithInstanceName("replier"))
	reader := consume("go-replies-"+topic, all, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, one := range messages {
			reply, err := consumer.CreateReplyMessage(one, nil)
			must(err)
			reply.Body = append([]byte("reply to "), one.Body...)
			_, err = replier.SendSync(context.Background(), reply)
			if err != nil {
				return consumer.ConsumeSuccess, nil // who asked is not there (any more)
			}
		}
		return consumer.ConsumeSuccess, nil
	}, consumer.WithInstance("reader"))
	end := time.Now().Add(readyFor)
	for n := 0; n < 3; n++ {
		reply, err := sender.Request(context.Background(), 3*time.Second, message("TagA", n))
		for err != nil && time.Now().Before(end) {
			reply, err = sender.Request(context.Background(), 3*time.Second, message("TagA", n))
		}
		must(err)
		tell("how", "sync", "reply", string(reply.Body))
	}
	answered := make(chan string)
	must(sender.RequestAsync(context.Background(), 20*time.Second, func(_ context.Context, reply *primitive.Message, err error) {
		must(err)
		answered <- string(reply.Body)
	}, message("TagA", 7)))
	tell("how", "async", "reply", <-answered)
	must(reader.Shutdown())
	_, err := sender.Request(context.Background(), time.Second, message("TagA", 9))
	tell("nobody replies", err != nil)
	must(replier.Shutdown())
	must(sender.Shutdown())
}

func namespace() {
	sender := newProducer(producer.WithNamespace("MQ_INST_1"))
	for n := 0; n < 5; n++ {
		_, err := sender.SendSync(context.Background(), message("TagA", n))
		must(err)
	}
	var got, outside seen
	reader := consume("go-namespace-"+topic, all, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, one := range messages {
			got.add(fmt.Sprintf("%s %s", one.Topic, one.Body)[len(topic):])
		}
		return consumer.ConsumeSuccess, nil
	}, consumer.WithNamespace("MQ_INST_1"), consumer.WithInstance("inside"))
	got.wait(5)
	other := consume("go-namespace-"+topic, all, take(&outside), consumer.WithInstance("outside"))
	time.Sleep(1500 * time.Millisecond) // what is too much would be here by then
	tell("got", got.different(), "outside", outside.different())
	must(other.Shutdown())
	must(reader.Shutdown())
	must(sender.Shutdown())
}

// What is sent and received is told to the trace topic; that is read like any other.
func trace() {
	to := &primitive.TraceConfig{GroupName: "go-trace", Access: primitive.Local, Resolver: resolver()}
	sender := newProducer(producer.WithTrace(to))
	result, err := sender.SendSync(context.Background(), message("TagA", 1))
	must(err)
	var got seen
	reader := consume("go-traced-"+topic, all, take(&got), consumer.WithTrace(to))
	got.wait(1)
	own := topic
	topic = "RMQ_SYS_TRACE_TOPIC"
	var told seen
	traces := consume("go-traces-"+own, all, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, one := range messages {
			for _, line := range strings.Split(string(one.Body), "\x02") {
				if strings.Contains(line, result.MsgID) {
					told.add(strings.SplitN(line, "\x01", 2)[0])
				}
			}
		}
		return consumer.ConsumeSuccess, nil
	}, consumer.WithInstance("traces"))
	told.wait(3)
	topic = own
	tell("told", told.different())
	must(traces.Shutdown())
	must(reader.Shutdown())
	must(sender.Shutdown())
}

// What is never done is a dead letter after so many attempts, in a topic of the group's.
func dead() {
	sender := newProducer()
	_, err := sender.SendSync(context.Background(), message("TagA", 1))
	must(err)
	var got seen
	group := "go-dead-" + topic
	reader := consume(group, all, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		got.add(fmt.Sprintf("%s %d", messages[0].Body, messages[0].ReconsumeTimes))
		return consumer.ConsumeRetryLater, nil
	}, consumer.WithConsumeMessageBatchMaxSize(1), consumer.WithMaxReconsumeTimes(2))
	got.wait(3)
	tell("attempts", got.different())
	time.Sleep(2 * time.Second) // the last is given back, too
	must(reader.Shutdown())
	own := topic
	topic = "%DLQ%" + group
	var letters seen
	undertaker := consume("go-undertaker-"+own, all, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, one := range messages {
			letters.add(fmt.Sprintf("%s %s %v", one.Body, one.GetTags(), one.GetProperty("ORIGIN_MESSAGE_ID") != ""))
		}
		return consumer.ConsumeSuccess, nil
	}, consumer.WithInstance("undertaker"))
	letters.wait(1)
	topic = own
	tell("dead", letters.different())
	must(undertaker.Shutdown())
	must(sender.Shutdown())
}

// A group goes on where it stopped; one that begins at a moment gets what came after it.
func resumed() {
	sender := newProducer()
	send := func(begin, end int) {
		for n := begin; n < end; n++ {
			_, err := sender.SendSync(context.Background(), message("TagA", n))
			must(err)
		}
	}
	send(0, 10)
	var first, second, third seen
	reader := consume("go-resumed-"+topic, all, take(&first), consumer.WithInstance("first"))
	first.wait(10)
	must(reader.Shutdown())
	time.Sleep(2 * time.Second)
	moment := time.Now()
	time.Sleep(2 * time.Second)
	send(20, 30)
	reader = consume("go-resumed-"+topic, all, take(&second), consumer.WithInstance("second"))
	second.wait(10)
	late := consume("go-late-"+topic, all, take(&third), consumer.WithInstance("third"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromTimestamp), consumer.WithConsumeTimestamp(moment.Format("20060102150405")))
	third.wait(10)
	time.Sleep(time.Second) // what is too much would be here by then
	tell("first", first.different(), "second", second.different(), "from a moment", third.different())
	must(late.Shutdown())
	must(reader.Shutdown())
	must(sender.Shutdown())
}

func pull() {
	sender := newProducer()
	for n := 0; n < 12; n++ {
		_, err := sender.SendSync(context.Background(), message("TagA", n))
		must(err)
	}
	made, err := rocketmq.NewPullConsumer(consumer.WithNsResolver(resolver()), consumer.WithGroupName("go-pull-"+topic),
		consumer.WithCredentials(credentials), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	must(err)
	must(made.Subscribe(topic, all))
	must(made.Start())
	var got seen
	for end := time.Now().Add(readyFor); len(got.different()) < 12; {
		if time.Now().After(end) {
			must(fmt.Errorf("it did not come: %v", got.different()))
		}
		result, err := made.Pull(context.Background(), 5)
		if err != nil || result.Status != primitive.PullFound {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		for _, one := range result.GetMessageExts() {
			got.add(string(one.Body))
		}
	}
	tell("got", got.different()) // how often is the client's affair: its queues change while it pulls
	must(made.Shutdown())
	must(sender.Shutdown())
}

// May it send, and read? Says what it was told.
func rights() {
	sender := newProducer(producer.WithRetry(0))
	_, err := sender.SendSync(context.Background(), message("TagA", 1))
	if err != nil {
		tell("refused", err.Error())
		os.Exit(0)
	}
	var got seen
	reader := consume("go-readers", all, take(&got))
	got.wait(1)
	tell("got", got.different())
	must(reader.Shutdown())
	must(sender.Shutdown())
}

func main() {
	rlog.SetLogLevel("fatal")
	registry, topic = os.Args[2], os.Args[3]
	if user := os.Getenv("PEER_USER"); user != "" {
		credentials = primitive.Credentials{AccessKey: user, SecretKey: os.Getenv("PEER_SECRET")}
	}
	flows := map[string]func(){
		"kinds": kinds, "orderly": orderly, "retry": retry, "delay": delay, "transactions": transactions,
		"broadcast": broadcast, "rights": rights, "requests": requests, "namespace": namespace, "trace": trace, "dead": dead,
		"resumed": resumed, "pull": pull,
		"tags": func() { filter(consumer.MessageSelector{Type: consumer.TAG, Expression: "TagA || TagC"}, 10) },
		"sql":  func() { filter(consumer.MessageSelector{Type: consumer.SQL92, Expression: "n BETWEEN 3 AND 9"}, 7) },
	}
	flow, known := flows[os.Args[1]]
	if !known {
		must(fmt.Errorf("no flow %s", os.Args[1]))
	}
	flow()
	os.Exit(0)
}
