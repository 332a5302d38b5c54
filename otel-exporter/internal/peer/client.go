package peer

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	// connectMax limits a new connection: TCP and TLS together.
	connectMax = time.Second
	// pingInterval is the interval of pings, and pingMax the limit for the answer to one. The client notices a leader that
	// died without a word, or whose process stands still, within their sum.
	pingInterval = 500 * time.Millisecond
	pingMax      = time.Second
	// idleMax is the time after which a connection without requests closes: its pings serve nothing.
	idleMax = 30 * time.Second
	// replyMax is the maximum number of bytes of a reply.
	replyMax = 64 << 10
	// headersMax is the maximum number of bytes of a reply's headers.
	headersMax = 16 << 10
)

var (
	errStranger = errors.New(
		"the certificate is not the one in the leader's row of the manifest: another process has the address")
	errNotHTTP2 = errors.New(
		"the other side does not speak HTTP/2: does the leader advertise its port for other producers?")
	errReplySize = fmt.Errorf("the reply is longer than %d bytes", replyMax)
)

// A Client asks leaders, over one connection that stays open: a shard has one leader. Only one goroutine may use it.
type Client struct {
	identity  *Identity
	leader    Leader
	transport *http.Transport // of the connection to the leader; nil: none
}

// NewClient returns a client that presents this identity.
func NewClient(identity *Identity) *Client { return &Client{identity: identity} }

// Ask sends a request and waits for the answer until the context ends, or until the leader shows no sign of life. After
// an error the request may or may not be committed.
func (c *Client) Ask(ctx context.Context, leader Leader, request *Request) (*Answer, error) {
	if c.transport != nil && c.leader != leader {
		c.Close()
	}
	if c.transport == nil {
		c.leader, c.transport = leader, c.connect(leader)
	}
	answer, err := c.send(ctx, request)
	if err != nil {
		// Whatever is wrong with the connection, the next request gets another.
		c.Close()
	}
	return answer, err
}

// Close closes the connection, if there is one.
func (c *Client) Close() {
	if c.transport != nil {
		c.transport.CloseIdleConnections()
		c.transport = nil
	}
}

func (c *Client) connect(leader Leader) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	config := c.identity.clientTLS(leader.Certificate)
	return &http.Transport{
		Protocols:       protocols,
		HTTP2:           &http.HTTP2Config{SendPingTimeout: pingInterval, PingTimeout: pingMax},
		IdleConnTimeout: idleMax,
		// A compressed reply might be larger than it looks.
		DisableCompression:     true,
		MaxResponseHeaderBytes: headersMax,
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, end := context.WithTimeoutCause(ctx, connectMax, fmt.Errorf("no connection within %s", connectMax))
			defer end()
			return dial(ctx, leader.Address, config)
		},
	}
}

func dial(ctx context.Context, address string, config *tls.Config) (net.Conn, error) {
	plain, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, explained(ctx, err)
	}
	connection := tls.Client(plain, config)
	if err := connection.HandshakeContext(ctx); err != nil {
		_ = plain.Close()
		return nil, explained(ctx, err)
	}
	if connection.ConnectionState().NegotiatedProtocol != "h2" {
		_ = connection.Close()
		return nil, errNotHTTP2
	}
	return connection, nil
}

// explained prefers the reason that ended the context.
func explained(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func (c *Client) send(ctx context.Context, request *Request) (*Answer, error) {
	body, err := encodeRequest(request)
	if err != nil {
		return nil, err
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+name+commitPath, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	// The producer decides what to do with a request that failed: the transport must not send it again.
	post.GetBody = nil
	post.Header.Set("Content-Type", contentType)
	post.Header.Set(producerHeader, request.Producer.String())
	response, err := c.transport.RoundTrip(post)
	if err != nil {
		return nil, explained(ctx, err)
	}
	defer func() { _ = response.Body.Close() }()
	reply, err := io.ReadAll(io.LimitReader(response.Body, replyMax+1))
	switch {
	case err != nil:
		return nil, explained(ctx, err)
	case len(reply) > replyMax:
		return nil, errReplySize
	case response.StatusCode != http.StatusOK:
		reason := strings.ToValidUTF8(string(reply[:min(len(reply), messageMax)]), "")
		return nil, fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(reason))
	}
	return decodeReply(reply)
}
