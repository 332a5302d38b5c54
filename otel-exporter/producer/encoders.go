package producer

import (
	"millpond.dev/otel-exporter/internal/segment"
)

// encoders compress blocks, so many at a time, with buffers that are used again. They know nothing of segments.
type encoders struct {
	compressor *segment.Compressor
	turns      chan struct{}
	buffers    chan []byte // of a whole block; nil: may be made, and has been paid for
	blockBytes int
	budget     *budget
	counters   *counters
}

func newEncoders(config *Config, budget *budget, counters *counters) (*encoders, error) {
	compressor, err := segment.NewCompressor(config.CompressionLevel, config.Encoders)
	if err != nil {
		return nil, err
	}
	e := &encoders{
		compressor: compressor,
		turns:      make(chan struct{}, config.Encoders),
		buffers:    make(chan []byte, config.blockBuffers()),
		blockBytes: config.BlockBytes,
		budget:     budget,
		counters:   counters,
	}
	for range config.blockBuffers() {
		e.buffers <- nil
	}
	return e, nil
}

// open gives a new block. full says that it is expected to fill: only then is a buffer of a whole block worth its
// memory; others grow as they fill.
func (e *encoders) open(baseUs int64, full bool) *openBlock {
	if full {
		select {
		case buffer := <-e.buffers:
			if buffer == nil {
				buffer = make([]byte, 0, e.blockBytes)
			}
			return &openBlock{builder: segment.NewBlockBuilder(baseUs, buffer), pooled: true}
		default:
		}
	}
	return &openBlock{builder: segment.NewBlockBuilder(baseUs, nil)}
}

// encode compresses a block when an encoder is free and gives back what that frees of its cost.
func (e *encoders) encode(full *fullBlock) doneBlock {
	e.counters.blocksEncoding.Add(1)
	e.turns <- struct{}{}
	encoded := e.compressor.Compress(full.builder, full.records)
	<-e.turns
	e.counters.blocksEncoding.Add(-1)
	if buffer := full.builder.Buffer(); full.pooled {
		// One that grew for a giant message is not worth keeping.
		if cap(buffer) > 2*e.blockBytes {
			buffer = nil
		}
		e.buffers <- buffer
	}
	cost := min(full.cost, int64(len(encoded.Bytes))+int64(encoded.Messages)*waiterBytes)
	e.budget.release(full.cost - cost)
	return doneBlock{full.segment, full.stream, full.slot, encoded, cost}
}
