//go:build unix

package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A File is a buffer in a directory, with the same contract as a bucket and the same layout as storage/src/file.rs: a
// lock file, a synced staged file, and a rename. A version is the file's inode, size and modification time. Every
// update advances the modification time, whatever the clock or the file system does.
type File struct {
	root string
	turn chan struct{} // serializes this process's use of the lock file, so that at most one thread blocks on it
}

// The names of the lock and of staged files end in '#' and digits. Keys never do, and every implementation leaves such
// files out of its listings.
const (
	lockName = ".millpond-lock#0"
	staged   = "#0" // of a replacement, under the lock
)

func openDirectory(root string, create bool) (*File, error) {
	info, err := os.Stat(root)
	switch {
	case err == nil && !info.IsDir():
		return nil, misconfigured(fmt.Errorf("%s is not a directory", root))
	case errors.Is(err, fs.ErrNotExist) && !create:
		return nil, misconfigured(fmt.Errorf("there is no directory %s; create it, or set create_bucket", root))
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(root, 0o700); err != nil {
			return nil, systemError(err)
		}
		if err := syncDirectory(filepath.Dir(root)); err != nil {
			return nil, systemError(err)
		}
	case err != nil:
		return nil, systemError(err)
	}
	return &File{root, make(chan struct{}, 1)}, nil
}

// URL is the directory's URL.
func (f *File) URL() string { return "file://" + f.root }

func (f *File) path(key string) string { return filepath.Join(f.root, filepath.FromSlash(key)) }

func systemError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission):
		return denied(err)
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR):
		return misconfigured(err)
	}
	return transient(err)
}

func versionOf(info fs.FileInfo) Version {
	var inode uint64
	if status, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = uint64(status.Ino)
	}
	return Version(fmt.Sprintf("%x-%x-%x", inode, info.ModTime().UnixMicro(), info.Size()))
}

// Get reads an object, or returns ErrAbsent.
func (f *File) Get(_ context.Context, key string, bytesMax int64) ([]byte, Version, error) {
	file, err := os.Open(f.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", ErrAbsent
	}
	if err != nil {
		return nil, "", systemError(err)
	}
	defer file.Close()
	// Stat the open file: a replacement is another file.
	info, err := file.Stat()
	if err != nil {
		return nil, "", systemError(err)
	}
	if info.Size() > bytesMax {
		return nil, "", tooLarge(info.Size(), bytesMax)
	}
	body := make([]byte, info.Size())
	if _, err := io.ReadFull(file, body); err != nil {
		return nil, "", systemError(err)
	}
	return body, versionOf(info), nil
}

// Create makes a hard link, which is atomic: no lock is needed.
func (f *File) Create(_ context.Context, key string, body Body) (Version, error) {
	path := f.path(key)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", systemError(err)
	}
	// A unique name: it comes from 64 random bits and must not exist.
	stage := fmt.Sprintf("%s#%d", path, rand.Uint64())
	// Nobody else removes what a full disk cuts off, and it would keep the disk full.
	defer os.Remove(stage)
	version, err := writeFile(stage, os.O_EXCL, body, time.Time{})
	if err != nil {
		return "", systemError(err)
	}
	if err := os.Link(stage, path); errors.Is(err, fs.ErrExist) {
		return "", ErrRefused
	} else if err != nil {
		return "", systemError(err)
	}
	return version, systemError(syncDirectory(filepath.Dir(path)))
}

// Replace compares and renames under the lock. A replacement that has begun finishes even if the caller leaves.
func (f *File) Replace(ctx context.Context, key string, expected Version, body Body) (Version, error) {
	unlock, err := f.lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	path := f.path(key)
	current, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", ErrRefused
	}
	if err != nil {
		return "", systemError(err)
	}
	if versionOf(current) != expected {
		return "", ErrRefused
	}
	// Overwrite a staged file that a crash left behind: under the lock, no other process uses it.
	version, err := writeFile(path+staged, os.O_TRUNC, body, current.ModTime())
	if err != nil {
		return "", systemError(err)
	}
	if err := os.Rename(path+staged, path); err != nil {
		return "", systemError(err)
	}
	return version, systemError(syncDirectory(filepath.Dir(path)))
}

// lock waits for the lock as long as the caller does. Another process may hold it and stand still.
func (f *File) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case f.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	file, err := os.OpenFile(filepath.Join(f.root, lockName), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		<-f.turn
		return nil, systemError(fmt.Errorf("lock: %w", err))
	}
	free := func() {
		file.Close()
		<-f.turn
	}
	locked := make(chan error, 1)
	go func() { locked <- flock(file) }()
	select {
	case err = <-locked:
	case <-ctx.Done():
		go func() {
			<-locked
			free()
		}()
		return nil, ctx.Err()
	}
	if err != nil {
		free()
		return nil, systemError(fmt.Errorf("lock: %w", err))
	}
	return free, nil
}

func flock(file *os.File) error {
	for {
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// writeFile writes a file durably, with a modification time later than `before`.
func writeFile(path string, flag int, body Body, before time.Time) (Version, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|flag, 0o600)
	if err != nil {
		return "", err
	}
	defer file.Close()
	for _, piece := range body {
		if _, err := file.Write(piece); err != nil {
			return "", err
		}
	}
	info, err := modifyAfter(file, before)
	if err != nil {
		return "", err
	}
	return versionOf(info), file.Sync()
}

// modifyAfter sets a modification time later than `before`, at the resolution of file systems.
func modifyAfter(file *os.File, before time.Time) (fs.FileInfo, error) {
	for _, step := range []time.Duration{0, 2 * time.Microsecond, 10 * time.Millisecond, 2 * time.Second} {
		if step > 0 {
			if err := os.Chtimes(file.Name(), time.Time{}, before.Add(step)); err != nil {
				return nil, err
			}
		}
		info, err := file.Stat()
		if err != nil {
			return nil, err
		}
		// Versions count microseconds.
		if before.IsZero() || !info.ModTime().Before(before.Add(time.Microsecond)) {
			return info, nil
		}
	}
	return nil, errors.New("the file system does not keep modification times, but versions depend on them")
}

func syncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	defer directory.Close()
	return directory.Sync()
}

// List returns the keys of all objects in a folder.
func (f *File) List(_ context.Context, folder string) ([]string, error) {
	var keys []string
	err := filepath.WalkDir(f.path(folder), func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || entry.IsDir() || strings.Contains(entry.Name(), "#") {
			return err
		}
		key, err := filepath.Rel(f.root, path)
		keys = append(keys, filepath.ToSlash(key))
		return err
	})
	return keys, systemError(err)
}

// Delete deletes an object.
func (f *File) Delete(ctx context.Context, key string) error {
	unlock, err := f.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.Remove(f.path(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return systemError(err)
	}
	return nil
}
