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
)

var errTalkative = errors.New("the client sent too much before a request that it may make")

// connections are the open connections of a server. Each pays for its memory. At the limit, a further one replaces one
// that has not proven itself, or is refused.
type connections struct {
	max, maxWatching int
	patience         time.Duration
	share            *share

	mutex    sync.Mutex
	open     map[*connection]struct{}
	admitted uint64 // orders connections
	watching int    // connections of consumers that watch
}

// A connection is an open connection, from before its handshake until it is closed.
type connection struct {
	net.Conn
	all    *connections
	source netip.Prefix
	nth    uint64
	proven atomic.Bool // a request on it was authorised
	// closes the connection unless it proves itself
	unproven *time.Timer
	received int // bytes before it has proven itself; the reader counts them

	watchers map[Host]Watcher // guarded by all.mutex; nil: it watches nothing
}

func newConnections(share *share, config *ServerConfig) *connections {
	// Half of the share is left to requests.
	most := min(int64(config.MaxConnections), share.limit/2/connectionBytes)
	limit := int(max(most, 1))
	return &connections{
		max:         limit,
		maxWatching: min(config.MaxWatchers, limit/watchersShare),
		patience:    config.Patience,
		share:       share,
		open:        make(map[*connection]struct{}),
	}
}

// admit takes a new connection, and closes another one if need be. It returns nil if there is no place or no memory:
// the caller must then close the new one. Only one goroutine may call it.
func (a *connections) admit(plain net.Conn) *connection {
	if replaced := a.replaced(); replaced != nil {
		_ = replaced.Close()
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if len(a.open) >= a.max || !a.share.free.TryAcquire(connectionBytes) {
		return nil
	}
	a.admitted++
	c := &connection{Conn: plain, all: a, source: source(plain), nth: a.admitted}
	c.unproven = time.AfterFunc(a.patience, func() { _ = c.Close() })
	a.open[c] = struct{}{}
	return c
}

// replaced returns the connection to close for another one. nil: none, because there is a place, or because all have
// proven themselves. The oldest one of the address with the most connections gives way.
func (a *connections) replaced() *connection {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if len(a.open) < a.max {
		return nil
	}
	crowds := make(map[netip.Prefix]int)
	for c := range a.open {
		if !c.proven.Load() {
			crowds[c.source]++
		}
	}
	var chosen *connection
	for c := range a.open {
		if c.proven.Load() {
			continue
		}
		if chosen == nil || crowds[c.source] > crowds[chosen.source] ||
			crowds[c.source] == crowds[chosen.source] && c.nth < chosen.nth {
			chosen = c
		}
	}
	return chosen
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
	if !c.proven.Swap(true) {
		c.unproven.Stop()
	}
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

// Close closes the connection at once, and gives back its memory and its place.
func (c *connection) Close() error {
	err := c.Conn.Close()
	c.all.mutex.Lock()
	defer c.all.mutex.Unlock()
	if _, open := c.all.open[c]; !open {
		return err
	}
	delete(c.all.open, c)
	c.unproven.Stop()
	c.all.share.free.Release(connectionBytes)
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
