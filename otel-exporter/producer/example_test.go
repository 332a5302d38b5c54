package producer_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"millpond.dev/otel-exporter/producer"
)

// Three messages go into a buffer in a directory. s3://bucket/prefix works the same way, with the credentials that the
// AWS CLI would use.
func Example() {
	directory, err := os.MkdirTemp("", "millpond")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(directory)

	ctx := context.Background()
	config := producer.DefaultConfig()
	config.Linger = 50 * time.Millisecond
	p, err := producer.Open(ctx, "file://"+directory, config)
	if err != nil {
		panic(err)
	}

	var callers sync.WaitGroup
	for user := range 3 {
		callers.Go(func() {
			_, err := p.Append(ctx, producer.Message{
				Stream:     "events.signup",
				Encoding:   producer.NDJSON,
				Payload:    fmt.Appendf(nil, "{\"user\":%d}\n", user),
				Records:    1,
				ReceivedAt: time.Now(),
			})
			if err != nil {
				panic(err)
			}
		})
	}
	callers.Wait()
	if err := p.Close(ctx); err != nil {
		panic(err)
	}
	fmt.Println(p.Stats().Records, "records are in the log")
	// Output: 3 records are in the log
}
