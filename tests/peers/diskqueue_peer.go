// queue: drives go-diskqueue, for the files beside this text and for the tests with a Go toolchain.
//
//	queue FOLDER NAME MAX_BYTES SYNC_EVERY SCRIPT...
//
// A word of the script: put:N puts the next N messages, take:N takes N and prints them in hex, depth prints the depth,
// empty empties, sync waits for the sync timer, close closes; without close the process ends as if killed.
package main

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nsqio/go-diskqueue"
)

// message n: timestamp n+1, attempts 1, the id is n in 16 hexadecimal digits, the body is n%40 times the letter n%26.
func message(n int) []byte {
	data := make([]byte, 10, 80)
	binary.BigEndian.PutUint64(data, uint64(n+1))
	binary.BigEndian.PutUint16(data[8:], 1)
	data = append(data, fmt.Sprintf("%016x", n)...)
	return append(data, strings.Repeat(string(rune('a'+n%26)), n%40)...)
}

func number(word string) int {
	n, err := strconv.Atoi(word)
	if err != nil {
		panic(err)
	}
	return n
}

func main() {
	quiet := func(level diskqueue.LogLevel, format string, args ...interface{}) {
		if level >= diskqueue.WARN {
			fmt.Fprintf(os.Stderr, format+"\n", args...)
		}
	}
	queue := diskqueue.New(os.Args[2], os.Args[1], int64(number(os.Args[3])), 26, 1<<20, int64(number(os.Args[4])),
		200*time.Millisecond, quiet)
	next := 0
	for _, word := range os.Args[5:] {
		verb, rest, _ := strings.Cut(word, ":")
		switch verb {
		case "from":
			next = number(rest)
		case "put":
			for i := 0; i < number(rest); i++ {
				if err := queue.Put(message(next)); err != nil {
					panic(err)
				}
				next++
			}
		case "take":
			for i := 0; i < number(rest); i++ {
				select {
				case data := <-queue.ReadChan():
					fmt.Println(hex.EncodeToString(data))
				case <-time.After(2 * time.Second):
					fmt.Println("nothing")
					return
				}
			}
		case "depth":
			fmt.Println(queue.Depth())
		case "empty":
			if err := queue.Empty(); err != nil {
				panic(err)
			}
		case "sync":
			time.Sleep(500 * time.Millisecond)
		case "close":
			if err := queue.Close(); err != nil {
				panic(err)
			}
			return
		default:
			panic(word)
		}
	}
}
