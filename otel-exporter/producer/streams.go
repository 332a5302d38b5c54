package producer

import (
	"fmt"
	"maps"
	"sync"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/segment"
)

// eventStreamsMax is the maximum number of streams with events in a shard. Clients name them, and a stream is for ever:
// the streams of OTLP keep room.
const eventStreamsMax = manifest.StreamsMax / 4

// streams caches the encoding of each known stream, to refuse a message with another encoding before it spoils a
// segment. The manifest's table is authoritative; the cache learns from it.
type streams struct {
	mutex     sync.RWMutex
	encodings map[string]Encoding
}

// admit returns an error if a message may not go to a stream.
func (s *streams) admit(stream string, encoding Encoding) error {
	s.mutex.RLock()
	known, found := s.encodings[stream]
	s.mutex.RUnlock()
	if !found {
		var err error
		if known, err = s.enter(stream, encoding); err != nil {
			return err
		}
	}
	if known != encoding {
		return fmt.Errorf("stream %s holds %s messages, not %s", stream, known, encoding)
	}
	return nil
}

func (s *streams) enter(stream string, encoding Encoding) (Encoding, error) {
	if !encoding.Known() {
		return 0, fmt.Errorf("%s is unknown", encoding)
	}
	if err := segment.CheckStreamName(stream); err != nil {
		return 0, err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if known, found := s.encodings[stream]; found {
		return known, nil
	}
	if len(s.encodings) >= manifest.StreamsMax {
		return 0, fmt.Errorf("stream %s is new, and the shard has its %d streams already", stream, manifest.StreamsMax)
	}
	if encoding == NDJSON && s.count(encoding) >= eventStreamsMax {
		return 0, fmt.Errorf("stream %s is new, and the shard has its %d streams of %s already; use one of them", stream, eventStreamsMax, encoding)
	}
	s.encodings[stream] = encoding
	return encoding, nil
}

func (s *streams) count(encoding Encoding) (count int) {
	for _, known := range s.encodings {
		if known == encoding {
			count++
		}
	}
	return count
}

// learn adopts the manifest's table. A full one gets no further stream, so the others are forgotten: their messages would
// spoil every segment that they enter.
func (s *streams) learn(table []manifest.Stream) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, stream := range table {
		s.encodings[stream.Name] = stream.Encoding
	}
	if len(table) >= manifest.StreamsMax && len(s.encodings) > len(table) {
		names := make(map[string]bool, len(table))
		for _, stream := range table {
			names[stream.Name] = true
		}
		maps.DeleteFunc(s.encodings, func(name string, _ Encoding) bool { return !names[name] })
	}
}
