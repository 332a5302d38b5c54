package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// everywhere runs a test against each kind of backend.
func everywhere(t *testing.T, test func(t *testing.T, store *Store)) {
	t.Run("memory", func(t *testing.T) { test(t, Over(NewMemory(), RequestTimeout)) })
	t.Run("file", func(t *testing.T) { test(t, open(t, "file://"+t.TempDir(), Options{})) })
	t.Run("minio", func(t *testing.T) {
		server := startMinio(t)
		test(t, open(t, server.url(), Options{Endpoint: server.endpoint, Create: true}))
	})
}

func open(t *testing.T, url string, options Options) *Store {
	t.Helper()
	store, err := Open(t.Context(), url, options)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func TestEveryBackendKeepsTheContract(t *testing.T) {
	everywhere(t, func(t *testing.T, store *Store) {
		ctx := t.Context()
		cas := func(key string, expected *Version, body string, wanted Outcome) Version {
			t.Helper()
			outcome, version, err := store.CompareAndSet(ctx, key, expected, []byte(body))
			if outcome != wanted {
				t.Fatalf("%s, %v", outcome, err)
			}
			return version
		}
		content := func(key, wanted string) Version {
			t.Helper()
			body, version, found, err := store.Get(ctx, key)
			if err != nil || !found || string(body) != wanted {
				t.Fatalf("%q, %t, %v", body, found, err)
			}
			return version
		}
		if _, _, found, err := store.Get(ctx, "a/absent"); found || err != nil {
			t.Fatal(found, err)
		}
		first := cas("a/k", nil, "1", Committed)
		if read := content("a/k", "1"); read != first {
			t.Errorf("written as %s, read as %s", first, read)
		}
		cas("a/k", nil, "x", Mismatch)
		second := cas("a/k", &first, "2", Committed)
		cas("a/k", &first, "x", Mismatch)
		cas("a/absent", &second, "x", Mismatch)
		content("a/k", "2")

		for i, wanted := range []bool{true, false} {
			created, err := store.PutIfAbsent(ctx, "a/b c/once", Body{[]byte("in "), nil, []byte(fmt.Sprint(i))})
			if err != nil || created != wanted {
				t.Fatal(created, err)
			}
		}
		content("a/b c/once", "in 0")
		created, err := store.PutIfAbsent(ctx, "empty", nil)
		if err != nil || !created {
			t.Fatal(created, err)
		}
		content("empty", "")

		keys, err := store.List(ctx, "a")
		slices.Sort(keys)
		if err != nil || !slices.Equal(keys, []string{"a/b c/once", "a/k"}) {
			t.Fatal(keys, err)
		}
		for range 2 {
			if err := store.Delete(ctx, "a/k"); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, found, err := store.Get(ctx, "a/k"); found || err != nil {
			t.Fatal(found, err)
		}
	})
}

func TestEveryBackendPassesTheSelfTestAndIsLeftClean(t *testing.T) {
	everywhere(t, func(t *testing.T, store *Store) {
		if err := store.SelfTest(t.Context()); err != nil {
			t.Fatal(err)
		}
		if keys, err := store.List(t.Context(), "self-test"); err != nil || len(keys) > 0 {
			t.Error(keys, err)
		}
	})
}

// Two stores over one directory or bucket act as two processes: of many writers from one version, one wins.
func TestOneOfManyWritersWins(t *testing.T) {
	directory := "file://" + t.TempDir()
	stores := []*Store{open(t, directory, Options{}), open(t, directory, Options{})}
	_, version, err := stores[0].CompareAndSet(t.Context(), "k", nil, []byte("0"))
	if err != nil {
		t.Fatal(err)
	}
	for round := range 20 {
		var mutex sync.Mutex
		var winners []Version
		var writers sync.WaitGroup
		for i := range 8 {
			writers.Go(func() {
				outcome, won, err := stores[i%2].CompareAndSet(t.Context(), "k", &version, []byte("same"))
				mutex.Lock()
				defer mutex.Unlock()
				if outcome == Committed {
					winners = append(winners, won)
				} else if outcome == Unknown {
					t.Error(err)
				}
			})
		}
		writers.Wait()
		if len(winners) != 1 {
			t.Fatalf("%d winners in round %d", len(winners), round)
		}
		version = winners[0]
	}
}

func TestNoVersionOfAFileComesBackEvenIfTheClockStandsStill(t *testing.T) {
	directory := t.TempDir()
	store := open(t, "file://"+directory, Options{})
	outcome, version, err := store.CompareAndSet(t.Context(), "k", nil, []byte("a"))
	if outcome != Committed {
		t.Fatal(err)
	}
	// The clock jumps back: existing files appear to come from the future.
	ahead := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Join(directory, "k"), ahead, ahead); err != nil {
		t.Fatal(err)
	}
	seen := map[Version]bool{version: true}
	_, version, _, err = store.Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		outcome, next, err := store.CompareAndSet(t.Context(), "k", &version, []byte("a"))
		if outcome != Committed || seen[next] {
			t.Fatalf("%s, %s, %v", outcome, next, err)
		}
		seen[next], version = true, next
	}
}

func TestStagedAndLockFilesAreNotListedAndDoNoHarm(t *testing.T) {
	directory := t.TempDir()
	store := open(t, "file://"+directory, Options{})
	_, version, err := store.CompareAndSet(t.Context(), "a/k", nil, []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	// Left behind by a crash between write and rename, in either language.
	for _, name := range []string{"a/k#0", "a/s#1"} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte("half of it"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if outcome, _, err := store.CompareAndSet(t.Context(), "a/k", &version, []byte("2")); outcome != Committed {
		t.Fatal(err)
	}
	if body, _, _, err := store.Get(t.Context(), "a/k"); string(body) != "2" || err != nil {
		t.Fatal(body, err)
	}
	keys, err := store.List(t.Context(), "a")
	if err != nil || !slices.Equal(keys, []string{"a/k"}) {
		t.Error(keys, err)
	}
}

func TestBodiesAreReadFromAnywhere(t *testing.T) {
	body := Body{[]byte("ab"), nil, []byte("cde"), []byte("f")}
	reader := body.Reader()
	for from := range int64(7) {
		if at, err := reader.Seek(from, io.SeekStart); at != from || err != nil {
			t.Fatal(at, err)
		}
		rest, err := io.ReadAll(reader)
		if err != nil || string(rest) != "abcdef"[from:] {
			t.Errorf("from %d: %q, %v", from, rest, err)
		}
	}
	if end, err := reader.Seek(0, io.SeekEnd); end != 6 || err != nil {
		t.Error(end, err)
	}
	if _, err := reader.Seek(7, io.SeekStart); err == nil {
		t.Error("a seek past the end was accepted")
	}
}

func TestURLs(t *testing.T) {
	for url, wanted := range map[string]place{
		"s3://my.bucket-1/a/b c/": {"s3", "my.bucket-1", "a/b c"},
		"s3://bucket":             {"s3", "bucket", ""},
		"file:///tmp/x/":          {"file", "", "/tmp/x"},
		"memory:///":              {"memory", "", ""},
	} {
		if found, err := parseURL(url); err != nil || found != wanted {
			t.Errorf("%s: %+v, %v", url, found, err)
		}
	}
	for url, reason := range map[string]string{
		"":                       "no scheme",
		"/tmp/x":                 "no scheme",
		"http://x/y":             `"http" is unknown`,
		"s3://":                  "name of a bucket",
		"s3:///prefix":           "name of a bucket",
		"s3://user@bucket/x":     "name of a bucket",
		"s3://bucket/a//b":       "prefix is not a valid key",
		"s3://bucket/../x":       "prefix is not a valid key",
		"s3://bucket/x?region=y": "no ?",
		"file://tmp/x":           "three slashes",
		"file:///":               "no directory",
		"memory:///x":            "no path",
		"gs://bucket/x":          "millpond gateway",
	} {
		_, err := parseURL(url)
		if err == nil || !strings.Contains(err.Error(), reason) || !strings.Contains(err.Error(), "write s3://") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestADirectoryThatIsMissingIsMadeOnlyWhenAskedTo(t *testing.T) {
	url := "file://" + filepath.Join(t.TempDir(), "a", "b")
	if _, err := Open(t.Context(), url, Options{}); KindOf(err) != Misconfigured {
		t.Error(err)
	}
	open(t, url, Options{Create: true})
	open(t, url, Options{})
}

func TestBackoffGrowsToItsMaximum(t *testing.T) {
	backoff := Backoff{Initial: 10 * time.Millisecond, Max: 100 * time.Millisecond}
	for _, wanted := range []time.Duration{10, 20, 40, 80, 100, 100} {
		if wait := backoff.Next(1); wait != wanted*time.Millisecond {
			t.Errorf("%s instead of %d ms", wait, wanted)
		}
	}
	for range 100 {
		if wait := backoff.Next(0.5); wait != 50*time.Millisecond {
			t.Fatal(wait)
		}
	}
}

// hangs never answers.
type hangs struct{ *Memory }

func (hangs) Get(ctx context.Context, _ string, _ int64) ([]byte, Version, error) {
	<-ctx.Done()
	return nil, "", ctx.Err()
}

func TestARequestThatIsNotAnsweredEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := time.Now()
		_, _, _, err := Over(hangs{NewMemory()}, 7*time.Second).Get(t.Context(), "k")
		if err == nil || !strings.Contains(err.Error(), "no answer within 7s") || KindOf(err) != Transient {
			t.Error(err)
		}
		if waited := time.Since(started); waited != 7*time.Second {
			t.Error(waited)
		}
	})
}

// forgetful is a store that ignores one precondition.
type forgetful struct {
	*Memory
	ignores string
}

func (f forgetful) Create(ctx context.Context, key string, body Body) (Version, error) {
	if f.ignores == "If-None-Match" {
		_ = f.Delete(ctx, key)
	}
	return f.Memory.Create(ctx, key, body)
}

func (f forgetful) Replace(ctx context.Context, key string, expected Version, body Body) (Version, error) {
	_, current, err := f.Get(ctx, key, objectMax)
	switch {
	case f.ignores == "If-Match" && err == nil:
		expected = current
	case f.ignores == "If-Match on an absent key" && err != nil:
		return f.Create(ctx, key, body)
	}
	return f.Memory.Replace(ctx, key, expected, body)
}

// repeating is a store behind a proxy that lost the answer to each contended write and sent it again.
type repeating struct{ *Memory }

func (r repeating) Create(ctx context.Context, key string, body Body) (Version, error) {
	return r.again(key)(r.Memory.Create(ctx, key, body))
}

func (r repeating) Replace(ctx context.Context, key string, expected Version, body Body) (Version, error) {
	return r.again(key)(r.Memory.Replace(ctx, key, expected, body))
}

func (r repeating) again(key string) func(Version, error) (Version, error) {
	return func(version Version, err error) (Version, error) {
		if err == nil && !strings.Contains(key, "alone") {
			return "", ErrRefused
		}
		return version, err
	}
}

func TestARepeatedWriteOfTheSelfTestIsNoVerdict(t *testing.T) {
	if err := Over(repeating{NewMemory()}, RequestTimeout).SelfTest(t.Context()); err != nil {
		t.Error(err)
	}
	test := &selfTest{store: Over(NewMemory(), RequestTimeout), folder: "t"}
	refused := make([]Outcome, selfTestWriters)
	for i := range refused {
		refused[i] = Mismatch
	}
	err := test.judge(t.Context(), "t/none", true, make([][]byte, selfTestWriters), refused, nil)
	if err == nil || !strings.Contains(err.Error(), "refuses conditional writes whose condition holds") {
		t.Error(err)
	}
}

// hasty checks the precondition and then acts on it: right one at a time and wrong together.
type hasty struct {
	*Memory
	all *sync.WaitGroup
}

func (h hasty) Replace(ctx context.Context, key string, expected Version, body Body) (Version, error) {
	_, current, err := h.Get(ctx, key, objectMax)
	if err != nil || current != expected {
		return "", ErrRefused
	}
	if !strings.Contains(key, "alone") {
		// All writers check before any writes.
		h.all.Done()
		h.all.Wait()
	}
	return h.Memory.Replace(ctx, key, current, body)
}

func TestAStoreThatIgnoresAPreconditionIsRefused(t *testing.T) {
	var all sync.WaitGroup
	all.Add(selfTestWriters)
	for violation, backend := range map[string]Backend{
		"it ignores If-None-Match (":             forgetful{NewMemory(), "If-None-Match"},
		"it ignores If-Match (":                  forgetful{NewMemory(), "If-Match"},
		"it ignores If-Match on an absent key (": forgetful{NewMemory(), "If-Match on an absent key"},
	} {
		err := Over(backend, RequestTimeout).SelfTest(t.Context())
		var unfit *UnfitError
		if !errors.As(err, &unfit) || !strings.Contains(err.Error(), violation) || KindOf(err) != Misconfigured {
			t.Errorf("%s: %v", violation, err)
		}
	}
	test := &selfTest{store: Over(lastWins{hasty{NewMemory(), &all}}, RequestTimeout), folder: "t"}
	err := test.atOnce(t.Context(), "k", false)
	if err == nil || !strings.Contains(err.Error(), "only while nobody else writes (16 of 16") {
		t.Error(err)
	}
}

// lastWins replaces whatever the object is after hasty's check.
type lastWins struct{ hasty }

func (l lastWins) Replace(ctx context.Context, key string, expected Version, body Body) (Version, error) {
	version, err := l.hasty.Replace(ctx, key, expected, body)
	for errors.Is(err, ErrRefused) && !strings.Contains(key, "alone") {
		var current Version
		if _, current, err = l.Get(ctx, key, objectMax); err != nil {
			break
		}
		// Another writer may get in between.
		version, err = l.Memory.Replace(ctx, key, current, body)
	}
	return version, err
}

// A disk that is full cuts off what is written. The rest of it must not keep the disk full.
func TestAFailedCreationLeavesNoFile(t *testing.T) {
	directory := t.TempDir()
	backend, err := openDirectory(directory, false)
	if err != nil {
		t.Fatal(err)
	}
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	limited := before
	limited.Cur = 100_000
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limited); err != nil {
		t.Fatal(err)
	}
	_, err = backend.Create(t.Context(), "a/b", Body{make([]byte, 200_000)})
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if err == nil {
		t.Error("the file was written")
	}
	if left, err := os.ReadDir(filepath.Join(directory, "a")); len(left) != 0 {
		t.Error(left, err)
	}
}

// Another process stands still while it holds the lock.
func TestAHeldLockIsWaitedForAsLongAsTheTimeout(t *testing.T) {
	directory := t.TempDir()
	backend, err := openDirectory(directory, false)
	if err != nil {
		t.Fatal(err)
	}
	patient, store := Over(backend, RequestTimeout), Over(backend, 50*time.Millisecond)
	if _, err := patient.PutIfAbsent(t.Context(), "a", Body{[]byte("1")}); err != nil {
		t.Fatal(err)
	}
	_, version, _, err := patient.Get(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(directory, lockName), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := flock(lock); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if outcome, _, err := store.CompareAndSet(t.Context(), "a", &version, []byte("2")); outcome != Unknown || !strings.Contains(fmt.Sprint(err), "no answer within 50ms") {
			t.Error(outcome, err)
		}
	}
	lock.Close()
	for outcome := Unknown; outcome != Committed; {
		if outcome, _, err = patient.CompareAndSet(t.Context(), "a", &version, []byte("2")); outcome == Mismatch {
			t.Fatal("a write took place after its caller had left")
		}
	}
}
