package producer

import (
	"log/slog"
	"strings"
	"sync"
)

// A stage is where the pipeline can be held up.
type stage int

const (
	opening stage = iota
	uploading
	committing
)

func (s stage) String() string { return [...]string{"open", "upload", "commit"}[s] }

// health is what the producer is waiting for. It decides nothing.
type health struct {
	mutex   sync.Mutex
	waiting [3]string // by stage; empty: it gets on
	log     *slog.Logger
}

// heldUp writes one line in the log when a stage is held up, not one for each attempt.
func (h *health) heldUp(stage stage, reason error) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.waiting[stage] == "" {
		h.log.Warn("millpond waits for the store and goes on trying", "stage", stage.String(), "reason", reason)
	} else {
		h.log.Debug("millpond still waits for the store", "stage", stage.String(), "reason", reason)
	}
	h.waiting[stage] = reason.Error()
}

func (h *health) gotOn(stage stage) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.waiting[stage] != "" {
		h.log.Info("millpond goes on: the store answers again", "stage", stage.String())
	}
	h.waiting[stage] = ""
}

// reason is what is waited for; empty when nothing is.
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
