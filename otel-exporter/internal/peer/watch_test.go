package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
)

func watching(consumer, newerThan, shard string) http.Header {
	header := http.Header{consumerHeader: {consumer}, newerThanHeader: {newerThan}}
	if shard != "" {
		header.Set(shardHeader, shard)
	}
	return header
}

// consumer is a process that owns a cursor in the shard.
func (l *leading) consumer(name string) *http.Client {
	identity := newIdentity(l.t)
	l.host.mutex.Lock()
	defer l.host.mutex.Unlock()
	l.host.cursors[name] = identity.Fingerprint()
	return l.by(identity)
}

func (l *leading) watches(c *http.Client, header http.Header, status int, says string) {
	l.t.Helper()
	found, text := l.do(c, watchPath, header, nil)
	if found != status || !strings.Contains(text, says) {
		l.t.Errorf("%d: %s, not %d: %s", found, text, status, says)
	}
}

func TestAConsumerHearsOfStates(t *testing.T) {
	l := lead(t, func(l *leading, _ *ServerConfig) { l.host.shard = 3 })
	c := l.consumer("default")
	large := bytes.Repeat([]byte("manifest"), 100_000)
	for _, header := range []http.Header{watching("default", "1", "3"), watching("default", "18446744073709551615", "")} {
		for _, state := range []string{"small", string(large)} {
			l.host.states <- []byte(state)
			l.watches(c, header, 200, state)
		}
	}
	if l.host.cursorReads != 1 || l.host.watching.Load() != 1 {
		t.Errorf("%d reads of the cursor, %d watchers", l.host.cursorReads, l.host.watching.Load())
	}
	l.eventually("a copy is held", func() bool { return l.host.released.Load() == 4 })
	l.watches(c, watching("default", "1000", "3"), http.StatusServiceUnavailable, "no memory")
	close(l.host.states)
	l.watches(c, watching("default", "1", "3"), http.StatusConflict, "does not lead")
	l.watches(c, watching("default", "1", "4"), http.StatusConflict, "does not lead shard 4")
}

func TestOnlyTheOwnerOfACursorMayWatchAndOnlyAsItsConsumer(t *testing.T) {
	l := lead(t, nil)
	l.host.states <- nil
	own := l.consumer("default")
	l.watches(own, watching("default", "0", ""), 200, "")
	l.consumer("other")
	l.watches(own, watching("nobody", "0", ""), http.StatusForbidden, "does not vouch")
	l.watches(own, watching("other", "0", ""), http.StatusForbidden, "does not vouch")
	l.watches(l.by(newIdentity(t)), watching("default", "0", ""), http.StatusForbidden, "does not vouch")
	// Names that would make another key.
	for _, name := range []string{
		"default.repair", "../0000/consumers/default", "default/cursor", strings.Repeat("x", 2_000),
	} {
		l.watches(own, watching(name, "0", ""), http.StatusBadRequest, "is not allowed")
	}
	l.watches(own, watching("", "0", ""), http.StatusBadRequest, "is missing")
	for _, version := range []string{"-1", "", "18446744073709551616"} {
		l.watches(own, watching("default", version, ""), http.StatusBadRequest, "is no version")
	}
	status, text := l.do(own, watchPath, watching("default", "0", ""), strings.NewReader("a body"))
	if status != http.StatusRequestEntityTooLarge {
		t.Errorf("%d: %s", status, text)
	}
	// A consumer's certificate commits nothing.
	body, _ := encodeRequest(l.request(1))
	header := http.Header{producerHeader: {memberID.String()}, "Content-Type": {contentType}}
	if status, text := l.do(own, commitPath, header, bytes.NewReader(body)); status != http.StatusForbidden {
		t.Errorf("%d: %s", status, text)
	}
	// And a producer's certificate watches nothing.
	l.watches(l.by(l.member().identity), watching("default", "0", ""), http.StatusForbidden, "does not vouch")
}

func TestACursorThatCannotBeReadIsNoProof(t *testing.T) {
	l := lead(t, func(l *leading, _ *ServerConfig) { l.host.cursorError = errors.New("the store is away") })
	c := l.consumer("default")
	l.watches(c, watching("default", "0", ""), http.StatusServiceUnavailable, "cannot be read now")
	_ = l.memory.Reserve(t.Context(), memoryOfTests)
	l.watches(c, watching("other", "0", ""), http.StatusServiceUnavailable, "cannot be read now")
	l.memory.Release(memoryOfTests)
}

func TestStrangersCauseOneReadASecond(t *testing.T) {
	l := lead(t, nil)
	c := l.by(newIdentity(t))
	statuses := make(chan int)
	const asked = 8
	for number := range asked {
		go func() {
			status, _ := l.do(c, watchPath, watching(fmt.Sprintf("stranger-%d", number), "0", ""), nil)
			statuses <- status
		}()
	}
	for range asked {
		if status := <-statuses; status != http.StatusForbidden && status != http.StatusTooManyRequests {
			t.Error(status)
		}
	}
	// At once, after a second, and at the end of the wait.
	if l.host.cursorReads > 4 {
		t.Errorf("%d reads", l.host.cursorReads)
	}
}

func TestAReaderThatTakesNothingIsCutAndItsCopyIsFree(t *testing.T) {
	l := lead(t, func(_ *leading, config *ServerConfig) { config.Patience = 2 * time.Second })
	c := l.consumer("default")
	l.host.states <- make([]byte, 16<<20)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+name+watchPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header = watching("default", "0", "")
	response, err := c.Do(request)
	if err != nil || response.StatusCode != 200 {
		t.Fatal(response, err)
	}
	l.eventually("the copy is held", func() bool { return l.host.released.Load() == 1 && l.host.watching.Load() == 0 })
	if _, err := io.ReadAll(response.Body); err == nil {
		t.Error("the whole state was sent")
	}
	_ = response.Body.Close()
}

func TestTooManyWatchersPoll(t *testing.T) {
	l := lead(t, func(_ *leading, config *ServerConfig) { config.MaxWatchers = 2 })
	crowd := l.consumer("default")
	identity := newIdentity(t)
	l.host.states <- nil
	l.watches(crowd, watching("default", "0", ""), 200, "")
	for range 2 {
		l.host.mutex.Lock()
		l.host.cursors["other"] = identity.Fingerprint()
		l.host.mutex.Unlock()
		other := l.by(identity)
		l.host.states <- nil
		l.watches(other, watching("other", "0", ""), 200, "")
		l.watches(l.by(identity), watching("other", "0", ""), http.StatusServiceUnavailable, "too many consumers")
		// A place is free as soon as its connection is closed.
		l.eventually("the place is taken", func() bool {
			other.CloseIdleConnections()
			return l.host.watching.Load() == 1
		})
	}
	// Consumers that wait take no request's place.
	ctx, end := context.WithCancel(t.Context())
	waits := make(chan error)
	go func() {
		request, _ := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+name+watchPath, nil)
		request.Header = watching("default", "0", "")
		_, err := crowd.Do(request)
		waits <- err
	}()
	answer, err := l.member().Ask(t.Context(), l.leader(), l.request(1))
	isCommitted(t, answer, err)
	end()
	if err := <-waits; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

var ours, others = manifest.Fingerprint{1}, manifest.Fingerprint{2}

func (c *consumers) is(
	t *testing.T, cursor string, presented manifest.Fingerprint, now time.Time, next verdict, again time.Time,
) {
	t.Helper()
	if found, until := c.judge(cursor, presented, now); found != next || until != again {
		t.Errorf("%d until %s", found, until)
	}
}

func TestACursorIsReadOnceAndAgainForAnotherCertificate(t *testing.T) {
	c, start, never := newConsumers(), time.Now(), time.Time{}
	c.is(t, "a", ours, start, readNow, never)
	c.found("a", ours, start)
	c.is(t, "a", ours, start.Add(time.Second), vouched, never)
	// Another process took the cursor, a moment after it was read.
	c.is(t, "a", others, start, waitFor, start.Add(time.Second))
	c.is(t, "a", others, start.Add(time.Second), readNow, never)
	// Until the answer is there, a stranger keeps nobody out.
	c.is(t, "a", ours, start.Add(time.Second), vouched, never)
	c.found("a", others, start.Add(time.Second))
	c.is(t, "a", others, start.Add(time.Second), vouched, never)
	c.is(t, "a", ours, start.Add(time.Second), waitFor, start.Add(2*time.Second))
	// The consumer was removed.
	later := start.Add(time.Second + trusted)
	c.is(t, "a", others, later, readNow, never)
	c.is(t, "a", others, later, waitFor, later.Add(time.Second))
	c.found("a", manifest.Fingerprint{}, later)
	c.is(t, "a", others, later, waitFor, later.Add(time.Second))
}

func TestStrangersCauseNoReadOfAKnownConsumer(t *testing.T) {
	c, start := newConsumers(), time.Now()
	c.found("known", ours, start)
	reads := 0
	for step := range 1_000 {
		now := start.Add(10 * time.Millisecond * time.Duration(step))
		stranger := fmt.Sprintf("stranger-%d", step)
		if next, _ := c.judge(stranger, others, now); next == readNow {
			c.found(stranger, manifest.Fingerprint{}, now)
			reads++
		}
		c.is(t, "known", ours, now, vouched, time.Time{})
	}
	if reads != 10 {
		t.Errorf("%d reads", reads)
	}
}

func TestTheNumberOfKnownConsumersIsBounded(t *testing.T) {
	c, start := newConsumers(), time.Now()
	for number := range 512 {
		c.found(fmt.Sprint(number), ours, start.Add(time.Second*time.Duration(number)))
	}
	if len(c.known) != knownMax || c.known["511"] == nil || c.known["255"] != nil {
		t.Errorf("%d known", len(c.known))
	}
}

// A consumer that was taken over opens every connection. Those without a place to watch end as those of a stranger do.
func TestAConsumerKeepsNoMemberOut(t *testing.T) {
	l := lead(t, func(_ *leading, config *ServerConfig) { config.MaxConnections, config.Patience = 16, time.Hour })
	taken := newIdentity(t)
	l.host.cursors["default"] = taken.Fingerprint()
	for range 20 {
		l.do(l.by(taken), watchPath, watching("default", "1000", ""), nil)
	}
	if proven := l.proven(); proven != 16/watchersShare {
		t.Errorf("%d of %d connections have proven themselves", proven, l.open())
	}
	answer, err := l.member().Ask(t.Context(), l.leader(), l.request(1))
	isCommitted(t, answer, err)
}

// Its consumer polls. A request that waits for so much memory would keep all others waiting.
func TestACursorIsReadOnlyIfItsMemoryIsFree(t *testing.T) {
	l := lead(t, nil)
	free := l.server.share.free
	taken := l.server.share.limit - manifest.CursorMemory + 1
	if err := free.Acquire(t.Context(), taken); err != nil {
		t.Fatal(err)
	}
	c, answered := l.consumer("default"), make(chan struct{})
	go func() {
		defer close(answered)
		l.watches(c, watching("default", "0", ""), http.StatusServiceUnavailable, "the cursor cannot be read now")
	}()
	for waits := true; waits; time.Sleep(time.Millisecond) {
		select {
		case <-answered:
			waits = false
		default:
		}
		if !free.TryAcquire(1) {
			t.Fatal("others wait for the memory of a cursor")
		}
		free.Release(1)
	}
	if l.host.cursorReads != 0 {
		t.Error("it was read")
	}
	free.Release(taken)
}
