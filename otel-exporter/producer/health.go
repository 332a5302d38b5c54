package producer

import (
	"log/slog"
	"strings"
	"sync"
)

// A stage is a point at which the store can stall the pipeline.
type stage int

const (
	opening stage = iota
	uploading
	committing
)

func (s stage) String() string { return [...]string{"open", "upload", "commit"}[s] }

// health records what the producer is waiting for. It decides nothing.
type health struct {
	mutex   sync.Mutex
	waiting [3]string // by stage; empty: not stalled
	log     *slog.Logger
}

// heldUp logs one line when a stage stalls, not one per attempt.
func (h *health) heldUp(stage stage, reason error) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.waiting[stage] == "" {
		h.log.Warn("millpond is waiting for the store and keeps retrying", "stage", stage.String(), "reason", reason)
	} else {
		h.log.Debug("millpond is still waiting for the store", "stage", stage.String(), "reason", reason)
	}
	h.waiting[stage] = reason.Error()
}

func (h *health) gotOn(stage stage) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.waiting[stage] != "" {
		h.log.Info("millpond continues: the store answers again", "stage", stage.String())
	}
	h.waiting[stage] = ""
}

// reason describes what the producer is waiting for, or is empty.
func (h *health) reason() string {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	var reasons []string
	for waiting, reason := range h.waiting {
		if reason != "" {
			reasons = append(reasons, "waiting for the store ("+stage(waiting).String()+"): "+reason)
		}
	}
	return strings.Join(reasons, "; ")
}
