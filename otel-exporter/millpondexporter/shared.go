package millpondexporter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/exporter"
	"go.uber.org/zap/exp/zapslog"

	"millpond.dev/otel-exporter/millpondexporter/internal/metadata"
	"millpond.dev/otel-exporter/producer"
)

// A sharedProducer serves one configured exporter, whatever signals use it: they share segments, commits and the memory
// limit.
type sharedProducer struct {
	config   *Config
	settings component.TelemetrySettings

	mutex     sync.Mutex
	users     int // components started and not yet shut down
	producer  *producer.Producer
	telemetry *metadata.TelemetryBuilder
	stopping  context.Context // ends when callers should stop waiting for commits
	giveUp    context.CancelCauseFunc
}

// The Collector passes the same configuration to the factory for all signals of an exporter.
var (
	sharedMutex sync.Mutex
	shared      = make(map[*Config]*sharedProducer)
)

func share(config *Config, settings exporter.Settings) *sharedProducer {
	sharedMutex.Lock()
	defer sharedMutex.Unlock()
	if found, there := shared[config]; there {
		return found
	}
	new := &sharedProducer{config: config, settings: withoutSignal(settings.TelemetrySettings)}
	shared[config] = new
	return new
}

// A lifecycle is a component of exporterhelper that also starts and stops the shared producer.
type lifecycle struct {
	inner   component.Component
	shared  *sharedProducer
	started bool // the Collector also shuts down components that it did not start
}

// Start opens the buffer. A configuration mistake stops the Collector as soon as the store has answered. An unreachable
// store does not: the producer, the queue and finally the sender hold the data meanwhile.
func (l *lifecycle) Start(ctx context.Context, host component.Host) error {
	if err := l.shared.start(ctx, host); err != nil {
		return err
	}
	l.started = true
	return l.inner.Start(ctx, host)
}

var errDrainTimeout = errors.New("the exporter is stopping, and its drain_timeout is over")

// Shutdown lets exporterhelper drain its queue and waits for the commits, for at most drain_timeout: an unreachable
// store must not keep the Collector from stopping. A persistent queue keeps the rest.
func (l *lifecycle) Shutdown(ctx context.Context) error {
	if !l.started {
		return errors.Join(l.inner.Shutdown(ctx), l.shared.forget())
	}
	l.started = false
	timer := time.AfterFunc(l.shared.config.DrainTimeout, l.shared.abandon)
	defer timer.Stop()
	return errors.Join(l.inner.Shutdown(ctx), l.shared.shutdown(ctx))
}

// startWait limits how long a start waits for the store and delays the Collector's other components.
const startWait = 5 * time.Second

func (s *sharedProducer) start(ctx context.Context, host component.Host) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.users == 0 {
		if err := s.open(ctx, host); err != nil {
			return err
		}
	}
	s.users++
	return nil
}

func (s *sharedProducer) open(ctx context.Context, host component.Host) error {
	telemetry, err := metadata.NewTelemetryBuilder(s.settings)
	if err != nil {
		return err
	}
	config := s.config.producer()
	config.Logger = slog.New(zapslog.NewHandler(s.settings.Logger.Core()))
	config.Hooks = hooks(telemetry)
	s.producer, err = producer.Begin(s.config.Buffer, config)
	if err != nil {
		telemetry.Shutdown()
		return err
	}
	starting, end := context.WithTimeout(ctx, startWait)
	defer end()
	err = s.producer.Opened(starting)
	var failed *producer.OpenError
	if errors.As(err, &failed) {
		telemetry.Shutdown()
		// The producer accepted nothing, so the error adds nothing.
		_ = s.producer.Close(ctx)
		return failed
	}
	s.telemetry = telemetry
	s.stopping, s.giveUp = context.WithCancelCause(context.WithoutCancel(ctx))
	if err != nil {
		componentstatus.ReportStatus(host, componentstatus.NewRecoverableErrorEvent(err))
		go reportOpened(s.stopping, s.producer, host)
	}
	return observe(telemetry, s.producer)
}

// reportOpened reports to the Collector the result of an opening that outlasted the start. A buffer that can never be
// opened stops the Collector.
func reportOpened(stopping context.Context, opening *producer.Producer, host component.Host) {
	err := opening.Opened(stopping)
	var failed *producer.OpenError
	switch {
	case err == nil:
		componentstatus.ReportStatus(host, componentstatus.NewEvent(componentstatus.StatusOK))
	case errors.As(err, &failed):
		componentstatus.ReportStatus(host, componentstatus.NewFatalErrorEvent(failed))
	}
}

// abandon makes the callers that wait for a commit give up.
func (s *sharedProducer) abandon() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.giveUp != nil {
		s.giveUp(errDrainTimeout)
	}
}

// forget releases the configuration for another producer, unless something still uses this one.
func (s *sharedProducer) forget() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.users == 0 {
		sharedMutex.Lock()
		defer sharedMutex.Unlock()
		if shared[s.config] == s {
			delete(shared, s.config)
		}
	}
	return nil
}

// shutdown closes the producer with its last user.
func (s *sharedProducer) shutdown(ctx context.Context) error {
	s.mutex.Lock()
	s.users--
	last := s.users == 0
	s.mutex.Unlock()
	if !last {
		return nil
	}
	// The drain ends with drain_timeout or the Collector's own deadline, whichever comes first.
	draining, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(s.stopping, end)()
	err := s.producer.Close(draining)
	s.giveUp(nil)
	s.telemetry.Shutdown()
	var failed *producer.OpenError
	if err != nil && !errors.As(err, &failed) {
		err = fmt.Errorf("records that were not reported as sent may be lost: %w", err)
	}
	return errors.Join(err, s.forget())
}
