package peer

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/peer/peerpb"
	"millpond.dev/otel-exporter/internal/segment"
)

// A purse is memory that counts.
type purse struct {
	free  *semaphore.Weighted
	limit int64
	held  atomic.Int64
}

func newPurse(limit int64) *purse { return &purse{free: semaphore.NewWeighted(limit), limit: limit} }

func (p *purse) Reserve(ctx context.Context, bytes int64) error {
	if err := p.free.Acquire(ctx, bytes); err != nil {
		return err
	}
	p.held.Add(bytes)
	return nil
}

func (p *purse) TryReserve(bytes int64) bool {
	if !p.free.TryAcquire(bytes) {
		return false
	}
	p.held.Add(bytes)
	return true
}

func (p *purse) Release(bytes int64) {
	p.held.Add(-bytes)
	p.free.Release(bytes)
}

func (p *purse) Limit() int64 { return p.limit }

// A fakeHost commits what it is told to.
type fakeHost struct {
	shard  uint32
	memory *purse
	commit func(context.Context, *Request) *Answer // nil: the sequence is the number

	mutex        sync.Mutex
	certificates map[manifest.ProducerID]manifest.Fingerprint
	later        map[manifest.ProducerID]manifest.Fingerprint // known after a look
	cursors      map[string]manifest.Fingerprint
	cursorError  error
	cursorReads  int
	requests     []*Request

	watching, released atomic.Int64
	states             chan []byte // that watchers get; closed: the host does not lead
}

func (h *fakeHost) Shard() uint32 { return h.shard }

func (h *fakeHost) CertificateOf(id manifest.ProducerID) (manifest.Fingerprint, bool) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	certificate, known := h.certificates[id]
	return certificate, known
}

func (h *fakeHost) LookFor(id manifest.ProducerID) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if certificate, there := h.later[id]; there {
		h.certificates[id] = certificate
	}
}

func (h *fakeHost) CommitFor(ctx context.Context, request *Request, held int64) *Answer {
	defer h.memory.Release(held)
	h.mutex.Lock()
	h.requests = append(h.requests, request)
	h.mutex.Unlock()
	if h.commit == nil {
		return &Answer{FirstSequence: request.Number, ClosesAfter: time.Millisecond, ClosesEvery: time.Second}
	}
	return h.commit(ctx, request)
}

func (h *fakeHost) CertificateOfConsumer(_ context.Context, consumer string) (manifest.Fingerprint, bool, error) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.cursorReads++
	certificate, known := h.cursors[consumer]
	return certificate, known, h.cursorError
}

func (h *fakeHost) asked() int {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return len(h.requests)
}

func (h *fakeHost) Watch() Watcher {
	h.watching.Add(1)
	return &fakeWatcher{h}
}

type fakeWatcher struct{ host *fakeHost }

func (w *fakeWatcher) Next(ctx context.Context, newerThan uint64) ([]byte, func(), *Refusal) {
	if newerThan == 1_000 {
		return nil, nil, NewRefusal(OverBudget, "")
	}
	select {
	case state, leads := <-w.host.states:
		if !leads {
			return nil, nil, NewRefusal(NotLeading, "")
		}
		return state, func() { w.host.released.Add(1) }, nil
	case <-ctx.Done():
		return nil, nil, nil
	}
}

func (w *fakeWatcher) Close() { w.host.watching.Add(-1) }

// A leading is a server with a host, over a real connection.
type leading struct {
	t        *testing.T
	host     *fakeHost
	memory   *purse
	server   *Server
	identity *Identity
	address  string
	served   chan struct{}
}

const memoryOfTests = 64 << 20

func lead(t *testing.T, change func(*leading, *ServerConfig)) *leading {
	t.Helper()
	t.Parallel()
	identity := newIdentity(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &leading{
		t: t, memory: newPurse(memoryOfTests), identity: identity, address: listener.Addr().String(),
		served: make(chan struct{}),
	}
	l.host = &fakeHost{
		certificates: make(map[manifest.ProducerID]manifest.Fingerprint),
		later:        make(map[manifest.ProducerID]manifest.Fingerprint),
		cursors:      make(map[string]manifest.Fingerprint),
		states:       make(chan []byte, 8),
	}
	config := DefaultServerConfig()
	if change != nil {
		change(l, &config)
	}
	l.host.memory = l.memory
	hosts := func() []Host { return []Host{l.host} }
	l.server = NewServer(identity, hosts, l.memory, config, slog.New(slog.DiscardHandler))
	go func() {
		l.server.Serve(listener)
		close(l.served)
	}()
	t.Cleanup(func() {
		l.close()
		l.isEven()
	})
	return l
}

func newIdentity(t *testing.T) *Identity {
	t.Helper()
	identity, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

func (l *leading) close() {
	ctx, end := context.WithTimeout(context.Background(), time.Minute)
	defer end()
	l.server.Close(ctx)
	<-l.served
}

func (l *leading) leader() Leader { return Leader{l.address, l.identity.Fingerprint()} }

// isEven fails unless all memory has gone back, and all watchers are closed.
func (l *leading) isEven() {
	l.t.Helper()
	l.eventually("memory or a watcher is held", func() bool {
		return l.memory.held.Load() == 0 && l.host.watching.Load() == 0 &&
			l.server.share.free.TryAcquire(l.server.share.limit)
	})
	l.server.share.free.Release(l.server.share.limit)
}

// eventually waits for something that another goroutine does.
func (l *leading) eventually(otherwise string, holds func() bool) {
	l.t.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			l.t.Fatal(otherwise)
		}
	}
}

// memberID is the producer of member.
var memberID = manifest.ProducerID{7}

// member is a client whose certificate the manifest has.
func (l *leading) member() *Client {
	c := client(l.t)
	l.host.mutex.Lock()
	defer l.host.mutex.Unlock()
	l.host.certificates[memberID] = c.identity.Fingerprint()
	return c
}

func block(t *testing.T, stream string) Block {
	t.Helper()
	builder := segment.NewBlockBuilder(5)
	if err := builder.Push(5, []byte(`{"a":1}`)); err != nil {
		t.Fatal(err)
	}
	compressor, err := segment.NewCompressor(1)
	if err != nil {
		t.Fatal(err)
	}
	return Block{stream, segment.NDJSON, compressor.Compress(builder, 1)}
}

func (l *leading) request(number uint64) *Request {
	return &Request{Producer: memberID, Number: number, Blocks: []Block{block(l.t, "events.a")}}
}

// isRejected fails unless the answer is an error with all of these words.
func isRejected(t *testing.T, answer *Answer, err error, words ...string) {
	t.Helper()
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%+v, %v, not %s", answer, err, word)
		}
	}
}

func isRefused(t *testing.T, answer *Answer, err error, reason Reason) {
	t.Helper()
	if err != nil || answer.Refused == nil || answer.Refused.Reason != reason {
		t.Errorf("%+v, %v, not %s", answer, err, NewRefusal(reason, ""))
	}
}

func isCommitted(t *testing.T, answer *Answer, err error) {
	t.Helper()
	if err != nil || answer.Refused != nil {
		t.Errorf("%+v, %v", answer, err)
	}
}

func TestAMemberGetsCommitsAndTheRhythm(t *testing.T) {
	l := lead(t, nil)
	c := l.member()
	for number := range uint64(3) {
		answer, err := c.Ask(t.Context(), l.leader(), l.request(number))
		isCommitted(t, answer, err)
		if answer.FirstSequence != number || answer.ClosesAfter != time.Millisecond || answer.ClosesEvery != time.Second {
			t.Errorf("%+v", answer)
		}
	}
	asked := l.host.requests[2]
	expected := l.request(2).Blocks[0]
	found := asked.Blocks[0]
	if asked.Producer != memberID || asked.Number != 2 || !bytes.Equal(found.Bytes, expected.Bytes) {
		t.Errorf("%+v", asked)
	}
	found.Bytes, expected.Bytes = nil, nil
	if found.Stream != expected.Stream || found.Encoding != expected.Encoding || found.RawLen != expected.RawLen ||
		found.Messages != 1 || found.Records != 1 || found.FirstUs != 5 || found.LastUs != 5 {
		t.Errorf("%+v, not %+v", found, expected)
	}
}

func TestAStrangerGetsNothing(t *testing.T) {
	l := lead(t, nil)
	l.member()
	answer, err := client(t).Ask(t.Context(), l.leader(), l.request(1))
	isRejected(t, answer, err, "403", "does not vouch")
	other := l.request(1)
	other.Producer[0]++
	answer, err = client(t).Ask(t.Context(), l.leader(), other)
	isRejected(t, answer, err, "403", "does not vouch")
	if l.host.asked() != 0 {
		t.Error("the host was asked")
	}
}

func TestAMemberThatRegisteredLaterIsKnownAfterALook(t *testing.T) {
	l := lead(t, nil)
	c := client(t)
	l.host.later[memberID] = c.identity.Fingerprint()
	answer, err := c.Ask(t.Context(), l.leader(), l.request(1))
	isCommitted(t, answer, err)
}

func TestAMemberAsksForItselfAlone(t *testing.T) {
	l := lead(t, nil)
	c := l.member()
	header := http.Header{producerHeader: {memberID.String()}, "Content-Type": {contentType}}
	other := l.request(1)
	other.Producer[0]++
	body, err := encodeRequest(other)
	if err != nil {
		t.Fatal(err)
	}
	status, text := l.post(c.identity, commitPath, header, body)
	if status != http.StatusForbidden || !strings.Contains(text, "not of "+memberID.String()) || l.host.asked() != 0 {
		t.Errorf("%d: %s", status, text)
	}
	// The same certificate under the id of another producer, which the manifest has with another certificate.
	l.host.certificates[other.Producer] = manifest.Fingerprint{1}
	answer, err := c.Ask(t.Context(), l.leader(), other)
	isRejected(t, answer, err, "403", "does not vouch")
}

// by is an HTTP client by hand.
func (l *leading) by(identity *Identity) *http.Client {
	c := NewClient(identity)
	transport := c.connect(l.leader())
	transport.HTTP2.MaxReceiveBufferPerConnection, transport.HTTP2.MaxReceiveBufferPerStream = 1<<16, 1<<16
	l.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (l *leading) post(identity *Identity, path string, header http.Header, body []byte) (int, string) {
	l.t.Helper()
	return l.do(l.by(identity), path, header, bytes.NewReader(body))
}

func (l *leading) do(c *http.Client, path string, header http.Header, body io.Reader) (int, string) {
	l.t.Helper()
	request, err := http.NewRequestWithContext(l.t.Context(), http.MethodPost, "https://"+name+path, body)
	if err != nil {
		l.t.Fatal(err)
	}
	request.Header = header
	return l.roundTrip(c, request)
}

func (l *leading) roundTrip(c *http.Client, request *http.Request) (int, string) {
	l.t.Helper()
	response, err := c.Do(request)
	if err != nil {
		l.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

func TestMalformedRequestsAreRejected(t *testing.T) {
	l := lead(t, func(_ *leading, config *ServerConfig) { config.MaxRequestBytes = 10_000 })
	c := l.member()
	good, err := encodeRequest(l.request(1))
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(good)
	damaged[bytes.Index(damaged, []byte(`{"a"`))] ^= 1
	header := func(change ...string) http.Header {
		header := http.Header{producerHeader: {memberID.String()}, "Content-Type": {contentType}}
		for i := 0; i < len(change); i += 2 {
			header.Set(change[i], change[i+1])
		}
		return header
	}
	h := l.by(c.identity)
	for says, request := range map[string]struct {
		path   string
		header http.Header
		body   io.Reader
		status int
	}{
		"is no producer id":          {commitPath, header(producerHeader, "7"), bytes.NewReader(good), 400},
		"content-type must be":       {commitPath, header("Content-Type", "text/plain"), bytes.NewReader(good), 415},
		"content-length is missing":  {commitPath, header(), io.MultiReader(bytes.NewReader(good)), 411},
		"is over the limit of 10000": {commitPath, header(), bytes.NewReader(make([]byte, 10_001)), 413},
		"checksum":                   {commitPath, header(), bytes.NewReader(damaged), 400},
		"unexpected EOF":             {commitPath, header(), bytes.NewReader(good[:len(good)-1]), 400},
		"producer has 0 bytes":       {commitPath, header(), nil, 400},
		"only POST /v1/commit and":   {"/v1/elsewhere", header(), bytes.NewReader(good), 404},
		"/v1/watch are here":         {"/", header(), bytes.NewReader(good), 404},
	} {
		status, text := l.do(h, request.path, request.header, request.body)
		if status != request.status || !strings.Contains(text, says) {
			t.Errorf("%d: %s, not %d: %s", status, text, request.status, says)
		}
	}
	if l.host.asked() != 0 {
		t.Error("the host was asked")
	}
	answer, err := c.Ask(t.Context(), l.leader(), l.request(1))
	isCommitted(t, answer, err)
}

func TestLargeHeadersAreRejected(t *testing.T) {
	l := lead(t, nil)
	c := l.member()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+name+commitPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header = http.Header{producerHeader: {memberID.String()}, "X": {strings.Repeat("x", 8<<10)}}
	// The server may close the connection, and a client that knows the limit does not even send them.
	response, err := l.by(c.identity).Do(request)
	if err == nil {
		_ = response.Body.Close()
		if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Error(response.Status)
		}
	}
}

func TestARequestWithClientsIsRefused(t *testing.T) {
	l := lead(t, nil)
	c := l.member()
	body, err := encodeRequest(l.request(1))
	if err != nil {
		t.Fatal(err)
	}
	client, err := proto.Marshal(&peerpb.Request{Clients: []*peerpb.Client{{Id: make([]byte, 16)}}})
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{producerHeader: {memberID.String()}, "Content-Type": {contentType}}
	status, text := l.post(c.identity, commitPath, header, append(body, client...))
	answer, err := decodeReply([]byte(text))
	isRefused(t, answer, err, Invalid)
	const reason = "refused: this producer does not know numbered requests"
	if status != 200 || answer.Refused.Error() != reason || l.host.asked() != 0 {
		t.Errorf("%d: %+v", status, answer)
	}
}

// Its producer asks for other records on the same connection.
func TestANumberedRequestIsUnknownAndItsConnectionStays(t *testing.T) {
	l := lead(t, nil)
	c := l.member()
	client := l.by(c.identity)
	header := http.Header{producerHeader: {l.request(1).Producer.String()}, "Content-Type": {contentType}}
	// Larger than the window, so that nothing but the answer ends it.
	large := bytes.NewReader(make([]byte, 3*windowBytes))
	if status, text := l.do(client, numberedPath, header, large); status != http.StatusNotFound {
		t.Errorf("%d %s", status, text)
	}
	if proven := l.proven(); proven != 1 {
		t.Errorf("%d connections have proven themselves", proven)
	}
	plain, err := encodeRequest(l.request(1))
	if err != nil {
		t.Fatal(err)
	}
	if status, text := l.do(client, commitPath, header, bytes.NewReader(plain)); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	if status, _ := l.post(newIdentity(t), numberedPath, header, nil); status != http.StatusForbidden {
		t.Errorf("a stranger got %d", status)
	}
}

func TestTheHostsRefusalsReachTheMember(t *testing.T) {
	answers := []*Answer{
		Refuse(NotLeading, ""), Refuse(Leaving, ""), Refuse(OverBudget, ""), Refuse(HeldUp, "slow \xff"), Refuse(Busy, ""),
		Refuse(NotCommitted, strings.Repeat("é", messageMax)), Refuse(Invalid, "so"),
	}
	next := make(chan *Answer, 1)
	l := lead(t, func(l *leading, _ *ServerConfig) {
		l.host.commit = func(context.Context, *Request) *Answer { return <-next }
	})
	c := l.member()
	for _, refused := range answers {
		next <- refused
		answer, err := c.Ask(t.Context(), l.leader(), l.request(1))
		isRefused(t, answer, err, refused.Refused.Reason)
		if len(answer.Refused.Error()) > 2*messageMax {
			t.Errorf("%d bytes", len(answer.Refused.Error()))
		}
	}
	next <- nil
	answer, err := c.Ask(t.Context(), l.leader(), l.request(1))
	isRejected(t, answer, err, "503")
}

func TestAMemberPaysForWhatItsRequestTakesInMemory(t *testing.T) {
	l := lead(t, nil)
	c := l.member()
	var body []byte
	for range 500_000 {
		// Less than 2 MiB as a request, and more than a hundred as structures.
		body = protowire.AppendBytes(protowire.AppendTag(body, 3, protowire.BytesType), nil)
	}
	header := http.Header{producerHeader: {memberID.String()}, "Content-Type": {contentType}}
	status, text := l.post(c.identity, commitPath, header, body)
	answer, err := decodeReply([]byte(text))
	isRefused(t, answer, err, OverBudget)
	if status != 200 || l.host.asked() != 0 {
		t.Error(status)
	}
	answer, err = c.Ask(t.Context(), l.leader(), l.request(1))
	isCommitted(t, answer, err)
}

func TestARequestWithoutMemoryIsRefusedAndNothingStaysTaken(t *testing.T) {
	l := lead(t, nil)
	c := l.member()
	for _, taken := range []func() func(){
		func() func() {
			_ = l.memory.Reserve(t.Context(), memoryOfTests)
			return func() { l.memory.Release(memoryOfTests) }
		},
		func() func() {
			part := l.server.share.limit - requestBytes
			_ = l.server.share.free.Acquire(t.Context(), part)
			return func() { l.server.share.free.Release(part) }
		},
	} {
		giveBack := taken()
		answer, err := c.Ask(t.Context(), l.leader(), l.request(1))
		isRefused(t, answer, err, OverBudget)
		giveBack()
		answer, err = c.Ask(t.Context(), l.leader(), l.request(1))
		isCommitted(t, answer, err)
	}
}

func TestTheMemoryOfARequestGoesBackWhenItsConnectionIsCut(t *testing.T) {
	started := make(chan struct{})
	l := lead(t, func(l *leading, _ *ServerConfig) {
		l.host.commit = func(ctx context.Context, _ *Request) *Answer {
			started <- struct{}{}
			<-ctx.Done()
			return nil
		}
	})
	c := l.member()
	ctx, end := context.WithCancel(t.Context())
	go func() {
		<-started
		end()
	}()
	answer, err := c.Ask(ctx, l.leader(), l.request(1))
	isRejected(t, answer, err, "canceled")
	l.eventually("memory is held", func() bool { return l.memory.held.Load() == 0 })
	// The server cuts the connection while the host commits.
	go func() {
		<-started
		l.server.connections.cut(true)
	}()
	if answer, err = c.Ask(t.Context(), l.leader(), l.request(2)); err == nil {
		t.Errorf("%+v", answer)
	}
}

func TestABodyThatTakesTooLongIsGivenUp(t *testing.T) {
	l := lead(t, func(_ *leading, config *ServerConfig) { config.Patience = 2 * time.Second })
	c := l.member()
	reader, writer := io.Pipe()
	defer func() { _ = writer.Close() }()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+name+commitPath, reader)
	if err != nil {
		t.Fatal(err)
	}
	request.ContentLength = 1_000
	request.Header = http.Header{producerHeader: {memberID.String()}, "Content-Type": {contentType}}
	if status, text := l.roundTrip(l.by(c.identity), request); status != http.StatusRequestTimeout {
		t.Errorf("%d: %s", status, text)
	}
}

func dialed(t *testing.T, l *leading) net.Conn {
	t.Helper()
	plain, err := net.Dial("tcp", l.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plain.Close() })
	return plain
}

// ends waits until the server closes a connection.
func ends(t *testing.T, connection net.Conn) {
	t.Helper()
	_ = connection.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.Copy(io.Discard, connection); errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		t.Error("the connection stays open")
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func TestConnectionsThatDoNotProveThemselvesAreClosed(t *testing.T) {
	l := lead(t, func(_ *leading, config *ServerConfig) { config.Patience = 200 * time.Millisecond })
	// A handshake that never ends.
	slow := dialed(t, l)
	if _, err := slow.Write([]byte{22, 3, 1, 2, 0, 1}); err != nil {
		t.Fatal(err)
	}
	ends(t, slow)
	// A key holder that asks nothing, or what it may not.
	silent := tls.Client(dialed(t, l), newIdentity(t).clientTLS(l.identity.Fingerprint()))
	if err := silent.Handshake(); err != nil {
		t.Fatal(err)
	}
	ends(t, silent)
}

func TestAProvenConnectionStaysOpen(t *testing.T) {
	l := lead(t, func(_ *leading, config *ServerConfig) { config.Patience = 2 * time.Second })
	c := l.member()
	answer, err := c.Ask(t.Context(), l.leader(), l.request(1))
	isCommitted(t, answer, err)
	ends(t, dialed(t, l)) // which came later
	l.eventually("it was closed, or the other is open", func() bool { return l.open() == 1 })
}

// proven returns the number of connections that have proven themselves.
func (l *leading) proven() (count int) {
	l.server.connections.mutex.Lock()
	defer l.server.connections.mutex.Unlock()
	for c := range l.server.connections.open {
		if c.proven.Load() {
			count++
		}
	}
	return count
}

func (l *leading) open() int {
	l.server.connections.mutex.Lock()
	defer l.server.connections.mutex.Unlock()
	return len(l.server.connections.open)
}

func TestAClientWithoutACertificateOrHTTP2GetsNoConnection(t *testing.T) {
	l := lead(t, nil)
	for name, change := range map[string]func(*tls.Config){
		"no certificate": func(config *tls.Config) { config.Certificates = nil },
		"no protocol":    func(config *tls.Config) { config.NextProtos = nil },
		"HTTP/1.1":       func(config *tls.Config) { config.NextProtos = []string{"http/1.1"} },
		"TLS 1.2": func(config *tls.Config) {
			config.MinVersion, config.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		},
	} {
		config := newIdentity(t).clientTLS(l.identity.Fingerprint())
		change(config)
		c := tls.Client(dialed(t, l), config)
		// The client's side of a handshake may end before the server has read its certificate.
		err := c.Handshake()
		if err == nil {
			_, err = c.Write([]byte("POST /v1/commit HTTP/1.1\r\nHost: millpond\r\n\r\n"))
		}
		if err == nil {
			var answer []byte
			answer, err = io.ReadAll(c)
			if len(answer) > 0 {
				t.Errorf("%s: %q", name, answer)
			}
		}
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestNoSessionOutlivesItsConnection(t *testing.T) {
	l := lead(t, nil)
	config := newIdentity(t).clientTLS(l.identity.Fingerprint())
	config.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	for range 2 {
		c := tls.Client(dialed(t, l), config)
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		// The settings of HTTP/2 come after any ticket.
		if _, err := c.Read(make([]byte, 9)); err != nil || c.ConnectionState().DidResume {
			t.Error(err, "or resumed")
		}
	}
}

func TestAStrangerThatTalksEndlesslyIsCut(t *testing.T) {
	l := lead(t, func(_ *leading, config *ServerConfig) { config.Patience = time.Hour })
	endless := tls.Client(dialed(t, l), newIdentity(t).clientTLS(l.identity.Fingerprint()))
	if err := endless.Handshake(); err != nil {
		t.Fatal(err)
	}
	reading := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, endless)
		close(reading)
	}()
	// HTTP/2's preface, its settings, and frames of a type that nobody knows.
	_, _ = endless.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
	frame := append([]byte{0, 0x40, 0, 0xff, 0, 0, 0, 0, 0}, make([]byte, frameMax)...)
	var err error
	for sent := 0; err == nil && sent < 100<<20; sent += len(frame) {
		_, err = endless.Write(frame)
	}
	if err == nil {
		t.Error("the server reads on")
	}
	_ = endless.Close()
	<-reading
}

func TestSilentConnectionsKeepNoMemberOut(t *testing.T) {
	l := lead(t, func(_ *leading, config *ServerConfig) {
		config.MaxConnections, config.Patience = 20, time.Hour
	})
	for range 100 {
		dialed(t, l)
	}
	c := l.member()
	for number := range uint64(3) {
		answer, err := c.Ask(t.Context(), l.leader(), l.request(number))
		isCommitted(t, answer, err)
	}
	for range 40 {
		dialed(t, l)
	}
	// Its connection has proven itself: nobody replaces it.
	answer, err := c.Ask(t.Context(), l.leader(), l.request(3))
	isCommitted(t, answer, err)
	if open := l.open(); open > 20 {
		t.Errorf("%d connections", open)
	}
}

func TestAConnectionIsRefusedIfAllHaveCommitsInFlight(t *testing.T) {
	answers := make(chan *Answer)
	l := lead(t, func(l *leading, config *ServerConfig) {
		config.MaxConnections = 4
		l.host.commit = func(context.Context, *Request) *Answer { return <-answers }
	})
	var members sync.WaitGroup
	member := l.member()
	for number := range uint64(4) {
		c := NewClient(member.identity)
		members.Go(func() {
			answer, err := c.Ask(t.Context(), l.leader(), l.request(number))
			isCommitted(t, answer, err)
		})
	}
	l.eventually("four requests wait", func() bool { return l.host.asked() == 4 })
	ends(t, dialed(t, l))
	for range 4 {
		answers <- &Answer{}
	}
	members.Wait()
	// They keep three quarters of the places.
	c := NewClient(member.identity)
	members.Go(func() { answers <- &Answer{} })
	answer, err := c.Ask(t.Context(), l.leader(), l.request(5))
	isCommitted(t, answer, err)
	members.Wait()
}

func TestTheOldestOfTheMostCrowdedAddressGivesWay(t *testing.T) {
	all := newConnections(5, &ServerConfig{})
	open := func(from string, proven bool) *connection {
		c := &connection{all: all, used: all.tick(), source: source(&addressed{address: from})}
		c.proven.Store(proven)
		all.open[c] = struct{}{}
		return c
	}
	first := open("10.0.0.9", true)
	open("10.0.0.1", false)
	if all.replaced() != nil {
		t.Error("there is a place")
	}
	oldest := open("2001:db8::1", false)
	open("2001:db8::2", false)
	last := open("10.0.0.2", false)
	if found := all.replaced(); found != oldest {
		t.Errorf("connection %d", found.used)
	}
	for c := range all.open {
		c.proven.Store(true)
	}
	if found := all.replaced(); found != first {
		t.Errorf("connection %d of those that have all proven themselves", found.used)
	}
	for c := range all.open {
		c.commits = 1
	}
	if all.replaced() != nil {
		t.Error("all have commits in flight")
	}
	last.proven.Store(false)
	if found := all.replaced(); found != last {
		t.Error("a newcomer keeps its place")
	}
}

// An addressed is a connection that has only an address.
type addressed struct {
	net.Conn
	address string
}

func (f *addressed) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(f.address)} }

func TestWithLittleMemoryThereAreFewConnections(t *testing.T) {
	config := DefaultServerConfig()
	share, places := newShare(newPurse(40*connectionBytes), config.MaxConnections)
	all := newConnections(places, &config)
	if all.max != 10 || all.maxWatching != 2 || share.limit != 10*connectionBytes {
		t.Errorf("%d connections, %d of consumers, %d bytes for requests", all.max, all.maxWatching, share.limit)
	}
}

func TestCloseAnswersWhatIsInFlightAndNothingElse(t *testing.T) {
	started, finish := make(chan struct{}), make(chan struct{})
	l := lead(t, func(l *leading, _ *ServerConfig) {
		l.host.commit = func(_ context.Context, request *Request) *Answer {
			started <- struct{}{}
			<-finish
			return &Answer{FirstSequence: request.Number}
		}
	})
	c := l.member()
	h := l.by(c.identity)
	l.host.cursors["default"] = c.identity.Fingerprint()
	var asked sync.WaitGroup
	asked.Go(func() {
		answer, err := c.Ask(t.Context(), l.leader(), l.request(9))
		isCommitted(t, answer, err)
	})
	<-started
	asked.Go(func() {
		status, text := l.do(h, watchPath, watching("default", "5", ""), nil)
		if status != http.StatusConflict || !strings.Contains(text, "shutting down") {
			t.Errorf("%d: %s", status, text)
		}
	})
	l.eventually("nobody watches", func() bool { return l.host.watching.Load() == 1 })
	asked.Go(l.close)
	<-l.server.closing.Done()
	close(finish)
	asked.Wait()
	if _, err := net.Dial("tcp", l.address); err == nil {
		t.Error("the port is open")
	}
}

func TestARequestThatComesWhileTheServerClosesIsRefused(t *testing.T) {
	l := lead(t, nil)
	l.server.close()
	answer, err := l.member().Ask(t.Context(), l.leader(), l.request(1))
	isRefused(t, answer, err, Leaving)
}

func TestCloseCutsWhatTakesTooLong(t *testing.T) {
	started := make(chan struct{})
	l := lead(t, func(l *leading, config *ServerConfig) {
		config.DrainTimeout = 50 * time.Millisecond
		l.host.commit = func(ctx context.Context, _ *Request) *Answer {
			close(started)
			<-ctx.Done()
			return nil
		}
	})
	c := l.member()
	asked := make(chan error)
	go func() {
		_, err := c.Ask(context.Background(), l.leader(), l.request(9))
		asked <- err
	}()
	<-started
	l.close()
	if held := l.memory.held.Load(); held != 0 {
		t.Errorf("%d bytes are held", held)
	}
	if <-asked == nil {
		t.Error("it was answered")
	}
}

func TestAServerWithoutHostsKnowsNobody(t *testing.T) {
	l := lead(t, nil)
	l.server.hosts = func() []Host { return nil }
	answer, err := client(t).Ask(t.Context(), l.leader(), l.request(1))
	isRejected(t, answer, err, "403")
	status, _ := l.do(l.by(newIdentity(t)), watchPath, watching("default", "0", ""), nil)
	if status != http.StatusConflict {
		t.Error(status)
	}
}
