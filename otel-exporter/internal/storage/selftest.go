package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	selfTestWriters  = 16 // of a round at once: enough that a store that checks and then acts lets two through
	selfTestRounds   = 4  // each of updates and of creations
	selfTestAttempts = 8  // how often a question is asked that gets no clear answer
)

// An UnfitError is a promise that a store broke.
type UnfitError struct{ URL, Violation string }

func (e *UnfitError) Error() string {
	return fmt.Sprintf("the store at %s cannot hold a buffer: %s. Committed data would be overwritten without notice. "+
		"Use a store with conditional writes (AWS S3, Cloudflare R2, a current MinIO), or upgrade this one; "+
		"a proxy in front of it may be what drops the condition", e.URL, e.Violation)
}

// SelfTest tests that the store keeps the preconditions of writes, under many concurrent writers too: some stores are
// right one at a time and wrong together. A store that ignores one loses committed data without a word. It takes about
// 150 requests under self-test/ in the buffer, where it cleans up behind itself. A question that was not answered is
// asked again; it is never taken for a verdict.
func (s *Store) SelfTest(ctx context.Context) error {
	test := &selfTest{store: s, folder: "self-test/" + uuid.NewString()}
	err := test.run(ctx)
	test.cleanUp(ctx)
	var unfit *UnfitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unfit):
		return misconfigured(err)
	}
	return fmt.Errorf("the store could not be tested for conditional writes: %w", err)
}

type selfTest struct {
	store  *Store
	folder string
}

func (t *selfTest) unfit(format string, arguments ...any) error {
	return &UnfitError{t.store.URL(), fmt.Sprintf(format, arguments...)}
}

func (t *selfTest) key(name string) string { return t.folder + "/" + name }

func (t *selfTest) run(ctx context.Context) error {
	if err := t.oneAfterAnother(ctx); err != nil {
		return err
	}
	for round := range selfTestRounds {
		for _, creates := range []bool{true, false} {
			if err := t.atOnce(ctx, fmt.Sprintf("%d-%t", round, creates), creates); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *selfTest) oneAfterAnother(ctx context.Context) error {
	key := t.key("alone")
	first, err := t.settle(ctx, key, nil)
	if err != nil {
		return err
	}
	if _, err := t.settle(ctx, key, &first); err != nil {
		return err
	}
	for _, question := range []struct {
		key, violation string
		expected       *Version
	}{
		{key, "it ignores If-Match (an update based on a replaced version was accepted)", &first},
		{key, "it ignores If-None-Match (an object was created twice)", nil},
		{t.key("absent"), "it ignores If-Match on an absent key (an update created an object)", &first},
	} {
		err := t.patiently(ctx, func() error {
			outcome, _, err := t.store.CompareAndSet(ctx, question.key, question.expected, selfTestBody())
			if outcome == Committed {
				return t.unfit("%s", question.violation)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// atOnce is one round of concurrent writers of one object; repeated, on another key, while it has no clear end.
func (t *selfTest) atOnce(ctx context.Context, name string, creates bool) error {
	attempt := 0
	return t.patiently(ctx, func() error {
		// Never the same key: a late write of the attempt before would take part in this one.
		attempt++
		key := t.key(fmt.Sprintf("%s-%d", name, attempt))
		var base *Version
		if !creates {
			version, err := t.settle(ctx, key, nil)
			if err != nil {
				return err
			}
			base = &version
		}
		var bodies [selfTestWriters][]byte
		var outcomes [selfTestWriters]Outcome
		var errs [selfTestWriters]error
		var writers sync.WaitGroup
		for i := range bodies {
			bodies[i] = selfTestBody()
			writers.Go(func() {
				outcomes[i], _, errs[i] = t.store.CompareAndSet(ctx, key, base, bodies[i])
			})
		}
		writers.Wait()
		return t.judge(ctx, key, creates, bodies[:], outcomes[:], errors.Join(errs[:]...))
	})
}

func (t *selfTest) judge(ctx context.Context, key string, creates bool, bodies [][]byte, outcomes []Outcome, unknown error) error {
	winners, winner := 0, 0
	for i, outcome := range outcomes {
		if outcome == Committed {
			winners, winner = winners+1, i
		}
	}
	switch {
	case winners > 1 && creates:
		return t.unfit("it keeps If-None-Match only while nobody else writes (%d of %d concurrent creations of one object were accepted)", winners, len(outcomes))
	case winners > 1:
		return t.unfit("it keeps If-Match only while nobody else writes (%d of %d concurrent updates from one version were accepted)", winners, len(outcomes))
	case winners == 0 && unknown != nil:
		// One of the unknown ones may have won, or none reached the store.
		return unknown
	case winners == 0:
		return t.unfit("it refuses conditional writes whose condition holds")
	}
	// In a store that keeps its promise no other one, reported or not, can have replaced it.
	found, _, there, err := t.store.Get(ctx, key)
	if err != nil {
		return err
	}
	if !there || !bytes.Equal(found, bodies[winner]) {
		return t.unfit("a write that it accepted is not there when read back")
	}
	return nil
}

// settle writes an object that nobody else writes, whatever was reported, and gives its version.
func (t *selfTest) settle(ctx context.Context, key string, expected *Version) (Version, error) {
	body := selfTestBody()
	var version Version
	err := t.patiently(ctx, func() error {
		outcome, written, unknown := t.store.CompareAndSet(ctx, key, expected, body)
		if outcome == Committed {
			version = written
			return nil
		}
		found, at, there, err := t.store.Get(ctx, key)
		switch {
		case err != nil:
			return err
		case there && bytes.Equal(found, body):
			version = at
			return nil
		case outcome == Unknown:
			return unknown
		}
		return t.unfit("it refuses conditional writes whose condition holds")
	})
	return version, err
}

// patiently repeats a question that was not answered. It gives the first verdict, or the last failure to get one.
func (t *selfTest) patiently(ctx context.Context, ask func() error) error {
	backoff := Backoff{Initial: 50 * time.Millisecond, Max: 2 * time.Second}
	for attempt := 1; ; attempt++ {
		err := ask()
		var unfit *UnfitError
		if err == nil || errors.As(err, &unfit) || KindOf(err) != Transient || attempt == selfTestAttempts {
			return err
		}
		if err := Sleep(ctx, backoff.Next(rand.Float64())); err != nil {
			return err
		}
	}
}

// cleanUp deletes the test's objects. Objects that remain after an error do no harm.
func (t *selfTest) cleanUp(ctx context.Context) {
	keys, err := t.store.List(ctx, t.folder)
	if err != nil {
		return
	}
	for _, key := range keys {
		if t.store.Delete(ctx, key) != nil {
			return
		}
	}
}

// selfTestBody never repeats, so that no two states of an object have the same version anywhere.
func selfTestBody() []byte { return []byte(uuid.NewString()) }
