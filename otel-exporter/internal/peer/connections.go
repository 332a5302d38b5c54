package peer

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// windowBytes is the number of bytes that a client may send ahead. The minimum of HTTP/2: within a zone that is no
	// limit.
	windowBytes = 65_535
	// connectionBytes is the memory of an open connection: TLS's buffers and HTTP/2's window.
	connectionBytes = 48<<10 + windowBytes
	// watchersShare: consumers that watch may take this fraction of the connections.
	watchersShare = 4
	// newcomersShare: connections that have not proven themselves may take at most this fraction of the places.
	newcomersShare = 4
)

var errTalkative = errors.New("the client sent too much before a request that it may make")

// connections are the open connections of a server. At the limit, a further one replaces one that has not proven itself,
// or one without a commit in flight, or is refused.
type connections struct {
	max, maxWatching int
	patience         time.Duration

	mutex    sync.Mutex
	open     map[*connection]struct{}
	clock    uint64 // orders connections and their requests
	watching int    // connections of consumers that watch
}

// A connection is an open connection, from before its handshake until it is closed.
type connection struct {
	net.Conn
	all    *connections
	source netip.Prefix
	proven atomic.Bool // a request on it was authorised
	// closes the connection unless it proves itself
	unproven *time.Timer
	received int // bytes before it has proven itself; the reader counts them

	// The mutex of all guards the rest.
	used     uint64           // when it was opened, or the last request on it was authorised
	commits  int              // in flight
	watchers map[Host]Watcher // nil: it watches nothing
}

func newConnections(max int, config *ServerConfig) *connections {
	return &connections{
		max:         max,
		maxWatching: min(config.MaxWatchers, max/watchersShare),
		patience:    config.Patience,
		open:        make(map[*connection]struct{}),
	}
}

// admit takes a new connection, and closes another one if need be. It returns nil if there is no place: the caller must
// then close the new one. Only one goroutine may call it.
func (a *connections) admit(plain net.Conn) *connection {
	if replaced := a.replaced(); replaced != nil {
		_ = replaced.Close()
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if len(a.open) >= a.max {
		return nil
	}
	c := &connection{Conn: plain, all: a, source: source(plain), used: a.tick()}
	c.unproven = time.AfterFunc(a.patience, func() { _ = c.Close() })
	a.open[c] = struct{}{}
	return c
}

func (a *connections) tick() uint64 {
	a.clock++
	return a.clock
}

// replaced returns the connection to close for another one. nil: none, because there is a place, or because nobody gives
// way. Connections that have proven themselves keep three quarters of the places. Among the others, the oldest one of the
// address with the most of them gives way.
func (a *connections) replaced() *connection {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if len(a.open) < a.max {
		return nil
	}
	proven, crowds := 0, make(map[netip.Prefix]int)
	for c := range a.open {
		if c.proven.Load() {
			proven++
		} else {
			crowds[c.source]++
		}
	}
	var newcomer, slowest *connection
	for c := range a.open {
		switch {
		case !c.proven.Load():
			if newcomer == nil || crowds[c.source] > crowds[newcomer.source] ||
				crowds[c.source] == crowds[newcomer.source] && c.used < newcomer.used {
				newcomer = c
			}
		case c.commits == 0 && (slowest == nil || c.used < slowest.used):
			slowest = c
		}
	}
	if slowest != nil && proven > a.max-a.max/newcomersShare {
		return slowest
	}
	return newcomer
}

// cut closes all connections that have not proven themselves, or all.
func (a *connections) cut(provenToo bool) {
	a.mutex.Lock()
	var cut []*connection
	for c := range a.open {
		if provenToo || !c.proven.Load() {
			cut = append(cut, c)
		}
	}
	a.mutex.Unlock()
	for _, c := range cut {
		_ = c.Close()
	}
}

// prove keeps the connection: a request on it was authorised.
func (c *connection) prove() {
	c.all.mutex.Lock()
	c.used = c.all.tick()
	c.all.mutex.Unlock()
	if !c.proven.Swap(true) {
		c.unproven.Stop()
	}
}

// commit keeps the connection in its place until the returned function is called.
func (c *connection) commit() (answered func()) {
	add := func(count int) {
		c.all.mutex.Lock()
		defer c.all.mutex.Unlock()
		c.commits += count
	}
	add(1)
	return func() { add(-1) }
}

// watcher returns the connection's watcher of a host. The first one takes a place, until the connection closes. nil:
// there are too many.
func (c *connection) watcher(host Host) Watcher {
	c.all.mutex.Lock()
	defer c.all.mutex.Unlock()
	if found := c.watchers[host]; found != nil {
		return found
	}
	if _, open := c.all.open[c]; !open {
		return nil
	}
	if c.watchers == nil {
		if c.all.watching >= c.all.maxWatching {
			return nil
		}
		c.all.watching++
		c.watchers = make(map[Host]Watcher)
	}
	watcher := host.Watch()
	c.watchers[host] = watcher
	return watcher
}

// Read limits what a stranger can make the handshake keep: no more than the connection pays for.
func (c *connection) Read(into []byte) (int, error) {
	n, err := c.Conn.Read(into)
	if !c.proven.Load() {
		if c.received += n; c.received > connectionBytes {
			_ = c.Close()
			return 0, errTalkative
		}
	}
	return n, err
}

// Close closes the connection at once, and gives back its place.
func (c *connection) Close() error {
	err := c.Conn.Close()
	c.all.mutex.Lock()
	defer c.all.mutex.Unlock()
	if _, open := c.all.open[c]; !open {
		return err
	}
	delete(c.all.open, c)
	c.unproven.Stop()
	if c.watchers != nil {
		c.all.watching--
		for _, watcher := range c.watchers {
			watcher.Close()
		}
		c.watchers = nil
	}
	return err
}

// source is the address by which connections are counted: an IPv6 host has its whole /64.
func source(connection net.Conn) netip.Prefix {
	from, isTCP := connection.RemoteAddr().(*net.TCPAddr)
	if !isTCP {
		return netip.Prefix{}
	}
	address := from.AddrPort().Addr().Unmap().WithZone("")
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	prefix, _ := address.Prefix(bits)
	return prefix
}
