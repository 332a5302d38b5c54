package producer

import (
	"fmt"
	"sync"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/segment"
)

// streams is which encoding each stream has, as far as known here, so that a message of another is refused before it can
// spoil a segment. The manifest's table is the truth; this learns from it.
type streams struct {
	mutex     sync.RWMutex
	encodings map[string]Encoding
}

// admit says why a message may not go to a stream.
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
		return 0, fmt.Errorf("%s is not known", encoding)
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

// learn takes over what the manifest says.
func (s *streams) learn(table []manifest.Stream) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, stream := range table {
		s.encodings[stream.Name] = stream.Encoding
	}
}
