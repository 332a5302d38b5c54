package producer

import (
	"fmt"
	"sync"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/segment"
)

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
	s.encodings[stream] = encoding
	return encoding, nil
}

// learn adopts the manifest's table.
func (s *streams) learn(table []manifest.Stream) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, stream := range table {
		s.encodings[stream.Name] = stream.Encoding
	}
}
