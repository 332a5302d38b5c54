package peer

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
)

// This file answers POST /v1/watch: the leader answers a consumer with the manifest as soon as it has a newer one. The
// consumer's cursor vouches for its certificate, which allows nothing else.

// readWait: a consumer whose cursor the leader may not read yet waits this long. It polls meanwhile.
const readWait = 2 * time.Second

func (s *Server) watch(w http.ResponseWriter, v *visit) *rejection {
	consumer := v.Header.Get(consumerHeader)
	if consumer == "" {
		return reject(http.StatusBadRequest, "%s is missing", consumerHeader)
	}
	if err := manifest.CheckReaderName(consumer); err != nil {
		return reject(http.StatusBadRequest, "%v", err)
	}
	newerThan, err := strconv.ParseUint(v.Header.Get(newerThanHeader), 10, 64)
	if err != nil {
		return reject(http.StatusBadRequest, "%s is no version", newerThanHeader)
	}
	if v.ContentLength != 0 {
		return reject(http.StatusRequestEntityTooLarge, "the request has a body")
	}
	host, rejected := s.hostOf(v.Header.Get(shardHeader))
	if rejected == nil {
		rejected = s.authorizeConsumer(v, consumer, host)
	}
	if rejected != nil {
		return rejected
	}
	watcher := v.connection.watcher(host)
	if watcher == nil {
		return reject(http.StatusServiceUnavailable, "too many consumers watch this producer")
	}
	// Not without a place: a consumer would take all connections.
	v.connection.prove()
	return s.tell(w, v, watcher, newerThan)
}

// tell waits for a newer manifest and sends it.
func (s *Server) tell(w http.ResponseWriter, v *visit, watcher Watcher, newerThan uint64) *rejection {
	ctx, end := context.WithCancel(v.Context())
	defer end()
	defer context.AfterFunc(s.closing, end)()
	body, release, refused := watcher.Next(ctx, newerThan)
	switch {
	case refused == nil && release == nil:
		return reject(http.StatusConflict, "%v", NewRefusal(Leaving, ""))
	case refused == nil:
		defer release()
		s.send(w, v, http.StatusOK, "application/octet-stream", body)
		return nil
	case refused.Reason == NotLeading || refused.Reason == Leaving:
		return reject(http.StatusConflict, "%v", refused)
	}
	return reject(http.StatusServiceUnavailable, "%v", refused)
}

// hostOf returns the host in a shard. Older consumers do not name one.
func (s *Server) hostOf(shard string) (Host, *rejection) {
	for _, host := range s.hosts() {
		if shard == "" || strconv.FormatUint(uint64(host.Shard()), 10) == shard {
			return host, nil
		}
	}
	if shard == "" {
		return nil, reject(http.StatusConflict, "this process does not lead")
	}
	return nil, reject(http.StatusConflict, "this process does not lead shard %.20s", shard)
}

// authorizeConsumer checks that the consumer's cursor in the host's shard vouches for the certificate.
func (s *Server) authorizeConsumer(v *visit, consumer string, host Host) *rejection {
	cursor := manifest.CursorKey(host.Shard(), consumer)
	giveUpAt := time.Now().Add(readWait)
	for {
		next, again := s.judge(cursor, v.presented)
		switch {
		case next == vouched:
			return nil
		case next == readNow:
			return s.readCursor(v, cursor, consumer, host)
		case again.After(giveUpAt):
			return reject(http.StatusTooManyRequests, "cursors are read too often")
		}
		if !v.sleep(time.Until(again)) {
			return reject(http.StatusServiceUnavailable, "the request has ended")
		}
	}
}

func (s *Server) readCursor(v *visit, cursor, consumer string, host Host) *rejection {
	unreadable := func(reason any) *rejection {
		s.log.Debug("millpond: cannot check the certificate of a consumer", "consumer", consumer, "reason", reason)
		return reject(http.StatusServiceUnavailable, "the cursor cannot be read now")
	}
	held := &holding{of: s.share}
	defer held.release()
	// Without a wait, in which a stranger would keep others from their memory: a consumer polls meanwhile.
	if !held.tryReserve(manifest.CursorMemory) {
		return unreadable(NewRefusal(OverBudget, ""))
	}
	ctx, end := context.WithTimeout(v.Context(), s.config.Patience)
	defer end()
	found, known, err := host.CertificateOfConsumer(ctx, consumer)
	if err != nil {
		return unreadable(err)
	}
	if !known {
		found = manifest.Fingerprint{}
	}
	s.consumersMutex.Lock()
	s.consumers.found(cursor, found, time.Now())
	s.consumersMutex.Unlock()
	if known && found == v.presented {
		return nil
	}
	return reject(http.StatusForbidden, "the cursor does not vouch for this certificate of consumer %s", consumer)
}

func (s *Server) judge(cursor string, presented manifest.Fingerprint) (verdict, time.Time) {
	s.consumersMutex.Lock()
	defer s.consumersMutex.Unlock()
	return s.consumers.judge(cursor, presented, time.Now())
}
