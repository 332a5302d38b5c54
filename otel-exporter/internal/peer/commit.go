package peer

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/google/uuid"

	"millpond.dev/otel-exporter/internal/manifest"
)

// This file answers POST /v1/commit: another producer asks for a commit. A manifest vouches for its certificate.

const (
	// copies: a request is in memory as received and as blocks.
	copies = 2
	// requestBytes is the memory of a request beside its body.
	requestBytes = 8 << 10
	// elementBytes is the memory of a block, a segment or a part beside its bytes, as received and as decoded.
	elementBytes = 512
	// certificateWait: a certificate that the hosts do not know may be in a manifest that they have not read yet.
	certificateWait = 500 * time.Millisecond
	certificatePoll = 20 * time.Millisecond
)

func (s *Server) commit(w http.ResponseWriter, v *visit) *rejection {
	answer, rejected := s.committed(w, v)
	if rejected != nil {
		return rejected
	}
	reply, err := encodeReply(answer)
	if err != nil {
		return reject(http.StatusInternalServerError, "the reply cannot be written: %v", err)
	}
	s.send(w, v, http.StatusOK, contentType, reply)
	return nil
}

// numbered answers a request with clients that number theirs, which this producer does not know, as a version without
// the path does. Its producer asks for other records on the same connection.
func (s *Server) numbered(v *visit) *rejection {
	if _, _, rejected := s.authorize(v); rejected != nil {
		return rejected
	}
	v.connection.prove()
	return reject(http.StatusNotFound, "this producer does not know numbered requests")
}

// committed commits the records of a request, if its producer may ask.
func (s *Server) committed(w http.ResponseWriter, v *visit) (*Answer, *rejection) {
	producer, host, rejected := s.authorize(v)
	if rejected != nil {
		return nil, rejected
	}
	v.connection.prove()
	defer v.connection.commit()()
	if rejected := s.checkLength(v); rejected != nil {
		return nil, rejected
	}
	if s.closing.Err() != nil {
		return Refuse(Leaving, ""), nil
	}
	held := &holding{of: s.share}
	defer held.release()
	if !held.reserve(v.Context(), v.ContentLength*copies+requestBytes) {
		return Refuse(OverBudget, ""), nil
	}
	request, refused, rejected := s.read(w, v, held)
	if request == nil {
		return refused, rejected
	}
	if request.Producer != producer {
		return nil, reject(http.StatusForbidden, "the request is of producer %s, not of %s", request.Producer, producer)
	}
	answer := host.CommitFor(v.Context(), request, held.handOver())
	if answer == nil {
		return nil, reject(http.StatusServiceUnavailable, "the request has ended")
	}
	return answer, nil
}

// authorize checks that a manifest vouches for the certificate of the producer that asks. It returns the host in its
// shard: a producer is registered in one shard.
func (s *Server) authorize(v *visit) (manifest.ProducerID, Host, *rejection) {
	parsed, err := uuid.Parse(v.Header.Get(producerHeader))
	if err != nil {
		return manifest.ProducerID{}, nil, reject(http.StatusBadRequest, "%s is no producer id", producerHeader)
	}
	producer := manifest.ProducerID(parsed)
	giveUpAt := time.Now().Add(certificateWait)
	for {
		hosts := s.hosts()
		for _, host := range hosts {
			if certificate, known := host.CertificateOf(producer); known && certificate == v.presented {
				return producer, host, nil
			}
		}
		if !time.Now().Before(giveUpAt) {
			return producer, nil, reject(http.StatusForbidden,
				"the manifest does not vouch for this certificate of producer %s", producer)
		}
		for _, host := range hosts {
			host.LookFor(producer)
		}
		if !v.sleep(certificatePoll) {
			return producer, nil, reject(http.StatusServiceUnavailable, "the request has ended")
		}
	}
}

// sleep reports false if the request ended meanwhile.
func (v *visit) sleep(pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-v.Context().Done():
		return false
	}
}

// checkLength checks the announced length of a body, which has to be there.
func (s *Server) checkLength(v *visit) *rejection {
	switch {
	case v.Header.Get("Content-Type") != contentType:
		return reject(http.StatusUnsupportedMediaType, "content-type must be %s", contentType)
	case v.ContentLength < 0:
		return reject(http.StatusLengthRequired, "content-length is missing")
	case v.ContentLength > s.config.MaxRequestBytes:
		return reject(http.StatusRequestEntityTooLarge, "a request of %d bytes is over the limit of %d",
			v.ContentLength, s.config.MaxRequestBytes)
	}
	return nil
}

// read reads a request into memory that is reserved. It returns nil and an answer if there is no request to commit.
func (s *Server) read(w http.ResponseWriter, v *visit, held *holding) (*Request, *Answer, *rejection) {
	deadline := http.NewResponseController(w)
	if err := deadline.SetReadDeadline(time.Now().Add(s.config.Patience)); err != nil {
		return nil, nil, reject(http.StatusInternalServerError, "the body has no time limit: %v", err)
	}
	body := make([]byte, v.ContentLength)
	_, err := io.ReadFull(v.Body, body)
	_ = deadline.SetReadDeadline(time.Time{})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, nil, reject(http.StatusRequestTimeout, "the body took too long")
	case err != nil:
		return nil, nil, reject(http.StatusBadRequest, "%v", err)
	}
	count, err := elements(body)
	if err != nil {
		return nil, nil, reject(http.StatusBadRequest, "%v", err)
	}
	if !held.reserve(v.Context(), count*elementBytes) {
		return nil, Refuse(OverBudget, ""), nil
	}
	request, err := decodeRequest(body)
	var refusal *Refusal
	switch {
	case errors.As(err, &refusal):
		return nil, &Answer{Refused: refusal}, nil
	case err != nil:
		return nil, nil, reject(http.StatusBadRequest, "%v", err)
	}
	return request, nil, nil
}
