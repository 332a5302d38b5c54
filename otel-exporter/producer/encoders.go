package producer

import (
	"millpond.dev/otel-exporter/internal/segment"
)

// encoders compress a limited number of blocks concurrently, each with its own buffers. They know nothing of segments.
type encoders struct {
	free     chan *segment.Compressor
	budget   *budget
	counters *counters
}

func newEncoders(config *Config, budget *budget, counters *counters) (*encoders, error) {
	e := &encoders{free: make(chan *segment.Compressor, config.Encoders), budget: budget, counters: counters}
	for range config.Encoders {
		compressor, err := segment.NewCompressor(config.CompressionLevel)
		if err != nil {
			return nil, err
		}
		e.free <- compressor
	}
	return e, nil
}

// encode compresses a block when an encoder is free, and releases the part of its cost that compression saves.
func (e *encoders) encode(full *fullBlock) doneBlock {
	e.counters.blocksEncoding.Add(1)
	compressor := <-e.free
	encoded := compressor.Compress(full.builder, full.records)
	e.free <- compressor
	e.counters.blocksEncoding.Add(-1)
	cost := min(full.cost, int64(len(encoded.Bytes))+int64(encoded.Messages)*waiterBytes)
	e.budget.release(full.cost - cost)
	return doneBlock{full.segment, full.stream, full.slot, encoded, cost}
}
