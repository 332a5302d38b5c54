package peer

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
)

const (
	// serverPingInterval is the interval of pings on a silent connection, and serverPingMax the limit for the answer to
	// one.
	serverPingInterval = 30 * time.Second
	serverPingMax      = 10 * time.Second
	// requestHeadersMax is the maximum number of bytes of a request's headers.
	requestHeadersMax = 4 << 10
	// frameMax is the maximum size of a frame in bytes. The minimum of HTTP/2: the reader keeps a buffer of this size.
	frameMax = 16 << 10
	// acceptPause is the pause of accepting when the system refuses.
	acceptPause = 100 * time.Millisecond
)

// ServerConfig has the limits of the port. Start from DefaultServerConfig.
type ServerConfig struct {
	// MaxConnections is the maximum number of open connections. Default 512. With little memory there are fewer.
	MaxConnections int
	// MaxStreams is the maximum number of requests in flight on one connection. Default 8: a producer has one.
	MaxStreams int
	// MaxWatchers is the maximum number of connections of consumers that watch. Further ones poll. Default 128.
	MaxWatchers int
	// MaxRequestBytes is the maximum size of a request. Default 2 MiB.
	MaxRequestBytes int64
	// Patience is the time limit for a new connection to prove itself, for the body of a request, and for reading an
	// answer. Default 5 s.
	Patience time.Duration
	// DrainTimeout is the time limit for requests in flight to finish once the server closes. Default 10 s.
	DrainTimeout time.Duration
}

// DefaultServerConfig returns the defaults.
func DefaultServerConfig() ServerConfig {
	return ServerConfig{
		MaxConnections:  512,
		MaxStreams:      8,
		MaxWatchers:     128,
		MaxRequestBytes: 2 << 20,
		Patience:        5 * time.Second,
		DrainTimeout:    10 * time.Second,
	}
}

// A Server is the port for other producers and for consumers. Nobody else gets more from it than a handshake, and
// memory is reserved for every byte that waits here.
type Server struct {
	hosts       func() []Host
	config      ServerConfig
	log         *slog.Logger
	share       *share
	connections *connections
	http        *http.Server

	consumersMutex sync.Mutex
	consumers      *consumers

	closing   context.Context // ends when the server closes
	close     context.CancelFunc
	answering sync.RWMutex // read-locked by each request
}

// NewServer returns a port in front of the producers of a process that may lead. hosts returns those that are open, the
// one that takes new messages first. Half of the memory is for others.
func NewServer(identity *Identity, hosts func() []Host, memory Memory, config ServerConfig, log *slog.Logger) *Server {
	if log == nil {
		log = slog.Default()
	}
	share, places := newShare(memory, config.MaxConnections)
	closing, end := context.WithCancel(context.Background())
	s := &Server{
		hosts:       hosts,
		config:      config,
		log:         log,
		share:       share,
		connections: newConnections(places, &config),
		consumers:   newConsumers(),
		closing:     closing,
		close:       end,
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	s.http = &http.Server{
		Handler:        http.HandlerFunc(s.serve),
		TLSConfig:      identity.serverTLS(),
		Protocols:      protocols,
		MaxHeaderBytes: requestHeadersMax,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          config.MaxStreams,
			MaxReadFrameSize:              frameMax,
			MaxReceiveBufferPerConnection: windowBytes,
			MaxReceiveBufferPerStream:     windowBytes,
			SendPingTimeout:               serverPingInterval,
			PingTimeout:                   serverPingMax,
			WriteByteTimeout:              config.Patience,
		},
		DisableGeneralOptionsHandler: true,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connectionKey{}, c.(*tls.Conn).NetConn())
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return s
}

// Serve answers requests on the connections of a listener until Close, and closes the listener.
func (s *Server) Serve(listener net.Listener) {
	err := s.http.ServeTLS(&door{listener, s}, "", "")
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		s.log.Error("millpond: the port for other producers is closed", "reason", err)
	}
}

// Close ends the port. Watches end at once, and requests in flight have some time for their answers. The rest is cut
// off: its producers commit for themselves.
func (s *Server) Close(ctx context.Context) {
	s.close()
	s.connections.cut(false)
	ctx, end := context.WithTimeout(ctx, s.config.DrainTimeout)
	defer end()
	err := s.http.Shutdown(ctx)
	// Before the HTTP server's own Close, which says goodbye to each connection and waits for slow ones.
	s.connections.cut(true)
	if err != nil {
		_ = s.http.Close()
	}
	// The contexts of requests end with their connections.
	s.answering.Lock()
	defer s.answering.Unlock()
}

// A door admits connections before their handshakes.
type door struct {
	net.Listener
	server *Server
}

// Accept waits for a connection that is admitted.
func (d *door) Accept() (net.Conn, error) {
	s := d.server
	for {
		plain, err := d.Listener.Accept()
		switch {
		case err == nil:
			if admitted := s.connections.admit(plain); admitted != nil {
				return admitted, nil
			}
			s.log.Debug("millpond: a connection was refused: all connections are busy", "from", plain.RemoteAddr())
			_ = plain.Close()
			continue
		case s.closing.Err() != nil || errors.Is(err, net.ErrClosed):
			return nil, err
		}
		s.log.Warn("millpond: cannot accept a connection of another producer", "reason", err)
		select {
		case <-s.closing.Done():
		case <-time.After(acceptPause):
		}
	}
}

// connectionKey is the key of a request's *connection in its context.
type connectionKey struct{}

// A visit is a request with its connection.
type visit struct {
	*http.Request
	connection *connection
	presented  manifest.Fingerprint // of the client's certificate
}

// A rejection is an answer that is no reply: nobody looked into the request.
type rejection struct {
	status int
	reason string
}

func reject(status int, format string, arguments ...any) *rejection {
	return &rejection{status, fmt.Sprintf(format, arguments...)}
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.answering.RLock()
	defer s.answering.RUnlock()
	v := &visit{r, r.Context().Value(connectionKey{}).(*connection), sha256.Sum256(r.TLS.PeerCertificates[0].Raw)}
	var rejected *rejection
	switch {
	case r.Method == http.MethodPost && r.URL.Path == commitPath:
		rejected = s.commit(w, v)
	case r.Method == http.MethodPost && r.URL.Path == numberedPath:
		rejected = s.numbered(v)
	case r.Method == http.MethodPost && r.URL.Path == watchPath:
		rejected = s.watch(w, v)
	default:
		rejected = reject(http.StatusNotFound, "only POST %s and %s are here", commitPath, watchPath)
	}
	if rejected != nil {
		s.log.Debug("millpond: a request of another process was rejected",
			"status", rejected.status, "reason", rejected.reason)
		s.send(w, v, rejected.status, "text/plain; charset=utf-8", []byte(rejected.reason+"\n"))
	}
}

// send sends an answer, and closes the connection of a reader that takes longer than the patience: it holds a copy of
// an old manifest. A deadline for the stream is not enough, because it waits behind other writes.
func (s *Server) send(w http.ResponseWriter, v *visit, status int, contentType string, body []byte) {
	slow := time.AfterFunc(s.config.Patience, func() { _ = v.connection.Close() })
	defer slow.Stop()
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	// It returns when the connection has taken the bytes, or a copy of a few.
	_, _ = w.Write(body)
}
