package peer

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/oklog/ulid/v2"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/peer/peerpb"
	"millpond.dev/otel-exporter/internal/segment"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A port is a leader's port: HTTP/2 over TLS 1.3, for clients with a certificate. tests/test_leader.py has a gateway's.
type port struct {
	Leader
	connections atomic.Int64
}

func listen(t *testing.T, handle http.HandlerFunc) *port {
	t.Helper()
	identity, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &port{Leader: Leader{listener.Addr().String(), identity.Fingerprint()}}
	server := &http.Server{
		Handler:  handle,
		ErrorLog: log.New(io.Discard, "", 0),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				p.connections.Add(1)
			}
		},
		TLSConfig: &tls.Config{
			MinVersion:   tls.VersionTLS13,
			Certificates: []tls.Certificate{identity.certificate},
			ClientAuth:   tls.RequireAnyClientCert,
			NextProtos:   []string{"h2"},
		},
	}
	ended := make(chan struct{})
	go func() {
		_ = server.ServeTLS(listener, "", "")
		close(ended)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return p
}

func client(t *testing.T) *Client {
	t.Helper()
	identity, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(identity)
	t.Cleanup(c.Close)
	return c
}

func reply(w http.ResponseWriter, reply *peerpb.Reply) {
	body, _ := proto.Marshal(reply)
	_, _ = w.Write(body)
}

func committed(sequence uint64) *peerpb.Reply {
	return &peerpb.Reply{Outcome: &peerpb.Reply_Committed{Committed: &peerpb.Committed{
		FirstSequence: sequence, ClosesAfterUs: 5, ClosesEveryUs: 1_000_000,
	}}}
}

func request() *Request {
	return &Request{Producer: manifest.ProducerID{1}, Number: 7, Blocks: []Block{{
		"otlp.logs", segment.OTLP, segment.EncodedBlock{Bytes: []byte("block"), Records: 3, FirstUs: -5, LastUs: 6},
	}}}
}

func TestALeaderGetsTheRequestAndTheCertificateOverOneConnection(t *testing.T) {
	c := client(t)
	p := listen(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		message := new(peerpb.Request)
		if err := proto.Unmarshal(body, message); err != nil {
			t.Error(err)
		}
		presented := sha256.Sum256(r.TLS.PeerCertificates[0].Raw)
		if presented != c.identity.Fingerprint() || r.ContentLength != int64(len(body)) || r.ProtoMajor != 2 ||
			r.Method+r.URL.Path != "POST/v1/commit" || r.Header.Get("Content-Type") != "application/x-protobuf" ||
			r.Header.Get("Millpond-Producer") != "01000000-0000-0000-0000-000000000000" {
			t.Errorf("%+v", r)
		}
		if message.Number != 7 || len(message.Blocks) != 1 || string(message.Blocks[0].Block) != "block" ||
			message.Blocks[0].FirstReceivedAtUs != -5 || message.Blocks[0].ReceivedSpanUs != 11 {
			t.Errorf("%+v", message)
		}
		reply(w, committed(42))
	})
	for range 3 {
		answer, err := c.Ask(t.Context(), p.Leader, request())
		if err != nil || answer.Refused != nil || answer.FirstSequence != 42 || answer.ClosesEvery.Seconds() != 1 {
			t.Fatalf("%+v, %v", answer, err)
		}
	}
	if opened := p.connections.Load(); opened != 1 {
		t.Errorf("%d connections", opened)
	}
}

func TestARequestDescribesUploadedSegments(t *testing.T) {
	name := ulid.ULID{5}
	uploaded := manifest.NewSegment{Segment: name, Size: 99, Parts: []manifest.NewPart{{
		Stream: "events.a", Encoding: segment.NDJSON,
		Part: manifest.Part{Offset: 4, Length: 90, RawLen: 100, Messages: 2, Records: 3, FirstUs: 10, LastUs: 12},
	}}}
	body, err := encodeRequest(&Request{Number: 1, Segments: []manifest.NewSegment{uploaded}})
	if err != nil {
		t.Fatal(err)
	}
	message := new(peerpb.Request)
	if err := proto.Unmarshal(body, message); err != nil {
		t.Fatal(err)
	}
	expected := &peerpb.Request{Producer: make([]byte, 16), Number: 1, Segments: []*peerpb.Segment{{
		Name: name.Bytes(), Size: 99, Parts: []*peerpb.Part{{
			Stream: "events.a", Encoding: peerpb.Encoding_ENCODING_NDJSON, Offset: 4, Length: 90, RawLen: 100,
			Messages: 2, Records: 3, FirstReceivedAtUs: 10, ReceivedSpanUs: 2,
		}},
	}}}
	if !proto.Equal(message, expected) {
		t.Errorf("%v", message)
	}
}

func TestNobodyButTheLeaderOfTheManifestIsAsked(t *testing.T) {
	asked := false
	p := listen(t, func(w http.ResponseWriter, _ *http.Request) {
		asked = true
		reply(w, committed(1))
	})
	leader := p.Leader
	leader.Certificate[0]++
	_, err := client(t).Ask(t.Context(), leader, request())
	if err == nil || !strings.Contains(err.Error(), errStranger.Error()) {
		t.Error(err)
	}
	if asked {
		t.Error("a stranger got the records")
	}
}

func TestARefusalHasItsReason(t *testing.T) {
	for number, reason := range map[peerpb.Refused_Reason]Reason{
		peerpb.Refused_UNSPECIFIED:       Invalid,
		peerpb.Refused_NOT_LEADING:       NotLeading,
		peerpb.Refused_LEAVING:           Leaving,
		peerpb.Refused_OVER_BUDGET:       OverBudget,
		peerpb.Refused_HELD_UP:           HeldUp,
		peerpb.Refused_BUSY:              Busy,
		peerpb.Refused_NOT_COMMITTED:     NotCommitted,
		peerpb.Refused_INVALID:           Invalid,
		peerpb.Refused_Reason(1_000_000): Invalid,
	} {
		refused := &peerpb.Refused{Reason: number, Message: strings.Repeat("é", messageMax)}
		body, _ := proto.Marshal(&peerpb.Reply{Outcome: &peerpb.Reply_Refused{Refused: refused}})
		answer, err := decodeReply(body)
		if err != nil || answer.Refused.Reason != reason || len(answer.Refused.Error()) > 2*messageMax {
			t.Errorf("%s: %+v, %v", number, answer, err)
		}
	}
}

func TestARhythmThatIsNoneIsIgnored(t *testing.T) {
	for _, closes := range [][2]uint64{{2, 1}, {0, 1 << 63}, {1<<64 - 1, 1<<64 - 1}} {
		answer := decodeCommitted(&peerpb.Committed{ClosesAfterUs: closes[0], ClosesEveryUs: closes[1]})
		if answer.ClosesEvery != 0 || answer.ClosesAfter != 0 {
			t.Errorf("%v: %+v", closes, answer)
		}
	}
}

func TestAnAnswerThatIsNoReplyIsAnError(t *testing.T) {
	for says, answer := range map[string]http.HandlerFunc{
		"403 Forbidden: the manifest does not vouch": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "the manifest does not vouch", http.StatusForbidden)
		},
		"the reply cannot be read": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("nonsense")) },
		"the reply has no outcome": func(http.ResponseWriter, *http.Request) {},
		"connection error": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Large", strings.Repeat("x", 2*headersMax))
		},
		"the reply is longer than": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, replyMax+1)) },
		"stream error":             func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		p := listen(t, answer)
		if _, err := client(t).Ask(t.Context(), p.Leader, request()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, not %s", err, says)
		}
	}
}

func TestBytesThatAreNoReplyCauseNoPanic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := rapid.SliceOf(rapid.Byte()).Draw(t, "body")
		if rapid.Bool().Draw(t, "damaged") {
			body, _ = proto.Marshal(committed(rapid.Uint64().Draw(t, "sequence")))
			body[rapid.IntRange(0, len(body)-1).Draw(t, "place")] ^= rapid.Byte().Draw(t, "flip")
		}
		answer, err := decodeReply(body)
		if (answer == nil) == (err == nil) {
			t.Errorf("%+v, %v", answer, err)
		}
		if err == nil && (answer.ClosesAfter < 0 || answer.ClosesAfter > answer.ClosesEvery ||
			answer.ClosesEvery > closesMax) {
			t.Errorf("%+v", answer)
		}
	})
}

func TestTheNextRequestAfterAnErrorGetsAnotherConnection(t *testing.T) {
	answer := false
	p := listen(t, func(w http.ResponseWriter, _ *http.Request) {
		if !answer {
			answer = true
			panic(http.ErrAbortHandler)
		}
		reply(w, committed(1))
	})
	c := client(t)
	if _, err := c.Ask(t.Context(), p.Leader, request()); err == nil {
		t.Error("it succeeded")
	}
	if _, err := c.Ask(t.Context(), p.Leader, request()); err != nil {
		t.Error(err)
	}
	if opened := p.connections.Load(); opened != 2 {
		t.Errorf("%d connections", opened)
	}
}

// The wait has no limit as long as the leader answers pings, but one that stands still is an error.
func TestALeaderThatStandsStillIsAnError(t *testing.T) {
	identity, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		plain, err := listener.Accept()
		if err != nil {
			return
		}
		connection := tls.Server(plain, &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{identity.certificate}, NextProtos: []string{"h2"},
		})
		defer func() { _ = connection.Close() }()
		// The settings of HTTP/2, and then no word more. Reading ends when the client gives up.
		_, _ = connection.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0})
		_, _ = io.Copy(io.Discard, connection)
	}()
	leader := Leader{listener.Addr().String(), identity.Fingerprint()}
	if _, err := client(t).Ask(context.Background(), leader, request()); err == nil {
		t.Error("it answered")
	}
	<-done
}
