package storage

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"sync"
)

// Memory is a buffer in this process's memory, for tests and experiments.
type Memory struct {
	mutex   sync.Mutex
	objects map[string]memoryObject
	writes  uint64
}

type memoryObject struct {
	body    []byte
	version Version
}

// NewMemory returns an empty buffer.
func NewMemory() *Memory { return &Memory{objects: make(map[string]memoryObject)} }

// URL is the same for every buffer in memory.
func (m *Memory) URL() string { return "memory:///" }

// Get reads an object, or returns ErrAbsent.
func (m *Memory) Get(_ context.Context, key string, bytesMax int64) ([]byte, Version, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	object, found := m.objects[key]
	if !found {
		return nil, "", ErrAbsent
	}
	if int64(len(object.body)) > bytesMax {
		return nil, "", tooLarge(int64(len(object.body)), bytesMax)
	}
	return object.body, object.version, nil
}

// Create writes an object, or returns ErrRefused if it exists.
func (m *Memory) Create(_ context.Context, key string, body Body) (Version, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if _, found := m.objects[key]; found {
		return "", ErrRefused
	}
	return m.put(key, body), nil
}

// Replace writes an object, or returns ErrRefused if its version is not the expected one.
func (m *Memory) Replace(_ context.Context, key string, expected Version, body Body) (Version, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if object, found := m.objects[key]; !found || object.version != expected {
		return "", ErrRefused
	}
	return m.put(key, body), nil
}

func (m *Memory) put(key string, body Body) Version {
	m.writes++
	object := memoryObject{bytes.Join(body, nil), Version(strconv.FormatUint(m.writes, 10))}
	m.objects[key] = object
	return object.version
}

// List returns the keys of all objects in a folder.
func (m *Memory) List(_ context.Context, folder string) ([]string, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	var keys []string
	for key := range m.objects {
		if strings.HasPrefix(key, folder+"/") {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// Delete deletes an object.
func (m *Memory) Delete(_ context.Context, key string) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	delete(m.objects, key)
	return nil
}
