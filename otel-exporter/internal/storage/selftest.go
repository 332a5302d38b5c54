package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	selfTestWriters  = 16 // concurrent writers in a round: enough that a store that checks and then acts lets two through
	selfTestRounds   = 4  // rounds of updates, and as many of creations
	selfTestAttempts = 8  // attempts at a question that gets no clear answer
)

// An UnfitError reports a guarantee that a store broke.
type UnfitError struct{ URL, Violation string }

func (e *UnfitError) Error() string {
	return fmt.Sprintf("the store at %s cannot hold a buffer: %s. Committed data would be overwritten without notice. "+
		"Use a store with conditional writes (AWS S3, Cloudflare R2, a current MinIO), or upgrade this one; "+
		"a proxy in front of it may be what drops the condition", e.URL, e.Violation)
}

// SelfTest tests that the store honours the preconditions of writes, also with many concurrent writers: some stores are
// right one at a time and wrong together. A store that ignores one loses committed data silently. The test takes about
// 150 requests under self-test/ in the buffer and cleans up. It repeats a question that got no answer, and never takes
// a missing answer for a verdict.
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

// atOnce runs a round of concurrent writers of one object. It repeats the round on another key until the result is
// clear.
func (t *selfTest) atOnce(ctx context.Context, name string, creates bool) error {
	attempt := 0
	return t.patiently(ctx, func() error {
		// Never reuse a key: a late write of the previous attempt would take part in this one.
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
		// A writer with an unknown outcome may have won, or none reached the store.
		return unknown
	}
	found, _, there, err := t.store.Get(ctx, key)
	has := func(body []byte) bool { return there && bytes.Equal(found, body) }
	switch {
	case err != nil:
		return err
	// In a store that honours preconditions, no other write can have replaced it, reported or not.
	case winners > 0 && !has(bodies[winner]):
		return t.unfit("a write that it accepted is not there when read back")
	// Otherwise a proxy repeated the winner's request, and the store refused the second copy.
	case winners == 0 && !slices.ContainsFunc(bodies, has):
		return t.unfit("it refuses conditional writes whose condition holds")
	}
	return nil
}

// settle writes an object that no other process writes, whatever the store reports, and returns its version.
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

// patiently repeats a question that got no answer. It returns the first verdict, or the last error.
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

// cleanUp deletes the test's objects. Objects that remain after an error are harmless.
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

// selfTestBody never repeats, so that no two states of an object have the same version.
func selfTestBody() []byte { return []byte(uuid.NewString()) }
